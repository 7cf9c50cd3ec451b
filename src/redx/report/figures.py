"""Figures as SVG text: they follow the light or dark mode of the page, and the same figure gives the same bytes."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

from redx.report.content import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, safe for colour-blind readers; a rule has the same colour in every figure.
COLOURS = {
    "base": "#7d8590",
    "red": "#d55e00",
    "sum": "#e69f00",
    "moe": "#1279b8",
    "global": "#009e73",
    "uniform": "#56b4e9",
    "oracle": "#cc79a7",
}
MORE = ["#9a6b3f", "#a89a00", "#8e6bbf"]  # for lines that are not rules, when the colours above are used up
INK = "#010203"  # drawn in this colour, which is then replaced by the text colour of the page
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlesize": 10},
    **{"axes.grid": True, "grid.alpha": 0.15, "grid.linewidth": 0.7, "axes.axisbelow": True, "font.size": 9},
    **{"axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "image.cmap": "cividis"},
    **{"svg.fonttype": "none", "text.parse_math": False},  # names from users are not formulas
}
ALONE = (  # style of a figure that is a file of its own, where no page sets the text colour
    "<style>svg{color:#1d2127}text{font-family:system-ui,sans-serif!important}*{stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){svg{color:#e4e6ea}}</style>"
)


def line_colours(figure: Figure) -> dict[str, str]:
    """Return the colour of every line of a figure.

    Parameters
    ----------
    figure
        The figure.

    Returns
    -------
    dict
        CSS colours by the name of the line: the colour of the rule, the text colour for other dashed lines, and for
        the remaining lines colours that the figure does not use yet.
    """
    lines = {line.name: line for panel in figure.panels for line in panel.lines}
    others = [name for name, line in lines.items() if name not in COLOURS and not line.dashed]
    free = [colour for name, colour in COLOURS.items() if name not in lines and name != "base"] + MORE
    chosen = {name: free[index % len(free)] for index, name in enumerate(others)}
    return {name: COLOURS.get(name) or chosen.get(name, "currentColor") for name in lines}


def legend_lines(figure: Figure) -> list[tuple[str, bool]]:
    """Return the entries of the legend of a figure: distinct names of lines, and whether the line is dashed."""
    return list({line.name: line.dashed for panel in figure.panels for line in panel.lines}.items())


def draw_figure(figure: Figure, salt: str, only: Panel | None = None) -> str:
    """Return a figure as SVG.

    Parameters
    ----------
    figure
        The figure to draw.
    salt
        Text from which the ids in the SVG are made, so that they are unique in a page.
    only
        The panel to draw, without a legend and for a page; None for the whole figure as a file of its own.

    Returns
    -------
    str
        The SVG element.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    panels = figure.panels if only is None else (only,)
    columns = max(1, min(3, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    size = (4.8, 2.8) if len(figure.panels) == 1 else (3.6 * columns, 2.8 * rows)
    colours = {name: colour.replace("currentColor", INK) for name, colour in line_colours(figure).items()}
    salted = f"{salt}/{'' if only is None else figure.panels.index(only)}"
    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": salted}
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=size, layout="constrained")
        all_axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw_panel(axes, panel, colours, figure)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        if only is None and colours:
            entries = [
                Line2D([], [], color=colours[name], linestyle="--" if dashed else "-", label=name)
                for name, dashed in legend_lines(figure)
            ]
            canvas.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), 2 + 2 * columns))
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # Remove the XML prologue, metadata with URLs, styles that would apply to the whole page, and unused ids.
    svg = buffer.getvalue().decode()
    svg = re.sub(r"(?s)^.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor")
    head, _, body = svg.partition(">")
    if only is None:
        return f"{head}>{ALONE}{body}"
    return re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", head) + f">{body}"  # the page sets the size


def _draw_panel(axes: Axes, panel: Panel, colours: dict[str, str], figure: Figure) -> None:
    """Draw a panel; `figure` gives the range of the y axis, which panels of the same quantity share."""
    if panel.grid:
        import numpy

        surface = numpy.array(panel.grid, dtype=float)  # a missing value is None in JSON and NaN here
        axes.grid(False)
        picture = axes.imshow(surface, origin="lower", extent=panel.extent, aspect="auto", interpolation="nearest")
        low, high = numpy.nanmin(surface), numpy.nanmax(surface)
        picture.set_clim(low, high if high > low else low + 1)  # a constant surface gets the lowest colour
        axes.figure.colorbar(picture, ax=axes).outline.set_visible(False)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    for index, line in enumerate(panel.lines):
        style: dict[str, Any] = {"linestyle": (0, (3, 2)), "zorder": 4} if line.dashed else {"zorder": 3 - index / 100}
        if len(line.x) <= 12 and not line.dashed:
            style |= {"marker": "o", "markersize": 3 + index / 3}
        # Later lines are wider and lie below the earlier ones, so that curves that coincide stay visible.
        axes.plot(line.x, line.y, color=colours[line.name], linewidth=1.6 + 0.3 * index * (not line.dashed), **style)
    values = [y for other in figure.panels if other.y == panel.y for line in other.lines for y in line.y]
    values = [y for y in values if y is not None and math.isfinite(y)]
    if values and not panel.grid:  # panels of the same quantity have the same scale, so that readers can compare them
        margin = 0.05 * (max(values) - min(values)) or 0.05
        axes.set_ylim(min(values) - margin, max(values) + margin)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # plain numbers, not powers of ten
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
