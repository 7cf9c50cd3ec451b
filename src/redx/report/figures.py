"""Figures as SVG text that follows light and dark, the same bytes every time."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

from redx.report.content import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, safe for colour-blind eyes; a rule has the same colour in every figure, in this order.
COLOURS = {
    "base": "#7d8590",
    "red": "#d55e00",
    "sum": "#e69f00",
    "moe": "#1279b8",
    "global": "#009e73",
    "uniform": "#56b4e9",
    "oracle": "#cc79a7",
}
MORE = ["#9a6b3f", "#a89a00", "#8e6bbf"]
INK = "#010203"  # drawn in this colour, then turned into the page's own, so that figures follow light and dark
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlesize": 10},
    **{"axes.grid": True, "grid.alpha": 0.15, "grid.linewidth": 0.7, "axes.axisbelow": True, "font.size": 9},
    **{"axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "image.cmap": "cividis"},
    **{"svg.fonttype": "none", "text.parse_math": False},  # names of users are text, never formulas
}
ALONE = (  # what a figure needs when it is opened as a file, where no page says what its ink is
    "<style>svg{color:#1d2127}text{font-family:system-ui,sans-serif!important}*{stroke-linejoin:round}"
    "@media(prefers-color-scheme:dark){svg{color:#e4e6ea}}</style>"
)


def line_colours(figure: Figure) -> dict[str, str]:
    """A colour for every line of a figure: a rule's own, ink for a dashed line, else the next that is free."""
    lines = {line.name: line for panel in figure.panels for line in panel.lines}
    others = [name for name, line in lines.items() if name not in COLOURS and not line.dashed]
    free = [colour for name, colour in COLOURS.items() if name not in lines and name != "base"] + MORE
    chosen = {name: free[index % len(free)] for index, name in enumerate(others)}
    return {name: COLOURS.get(name) or chosen.get(name, "currentColor") for name in lines}


def legend_lines(figure: Figure) -> list[tuple[str, bool]]:
    """The lines of a figure for its legend: each name once, and whether it is dashed."""
    return list({line.name: line.dashed for panel in figure.panels for line in panel.lines}.items())


def draw_figure(figure: Figure, salt: str, only: Panel | None = None) -> str:
    """A figure with its legend as a file of its own, or one panel of it to stand in a page."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    panels = figure.panels if only is None else (only,)
    columns = max(1, min(3, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    size = (4.8, 2.8) if len(figure.panels) == 1 else (3.6 * columns, 2.8 * rows)
    colours = {name: colour.replace("currentColor", INK) for name, colour in line_colours(figure).items()}
    salted = f"{salt}/{'' if only is None else figure.panels.index(only)}"  # so that ids are unique in a page
    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": salted}
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=size, layout="constrained")
        places = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            _draw_panel(axes, panel, colours, figure)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        if only is None and colours:
            keys = [
                Line2D([], [], color=colours[n], linestyle="--" if d else "-", label=n) for n, d in legend_lines(figure)
            ]
            canvas.legend(handles=keys, loc="outside lower center", ncols=min(len(keys), 2 + 2 * columns))
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # No prologue, no metadata with addresses, no style that would reach the whole page, no ids that nothing refers to.
    svg = buffer.getvalue().decode()
    svg = re.sub(r"(?s)^.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor")
    head, _, body = svg.partition(">")
    if only is None:
        return f"{head}>{ALONE}{body}"
    return re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", head) + f">{body}"  # the page sets the size


def _draw_panel(axes: Axes, panel: Panel, colours: dict[str, str], figure: Figure) -> None:
    if panel.grid:
        import numpy

        surface = numpy.array(panel.grid, dtype=float)  # a hole in the surface is None in JSON, NaN here
        axes.grid(False)
        picture = axes.imshow(surface, origin="lower", extent=panel.extent, aspect="auto", interpolation="nearest")
        low, high = numpy.nanmin(surface), numpy.nanmax(surface)
        picture.set_clim(low, high if high > low else low + 1)  # a flat surface is at the low end, not in the middle
        axes.figure.colorbar(picture, ax=axes).outline.set_visible(False)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    for index, line in enumerate(panel.lines):
        style: dict[str, Any] = {"linestyle": (0, (3, 2)), "zorder": 4} if line.dashed else {"zorder": 3 - index / 100}
        if len(line.x) <= 12 and not line.dashed:
            style |= {"marker": "o", "markersize": 3 + index / 3}
        # Later lines lie below and are wider, so that curves that coincide can still be told apart.
        axes.plot(line.x, line.y, color=colours[line.name], linewidth=1.6 + 0.3 * index * (not line.dashed), **style)
    values = [y for other in figure.panels if other.y == panel.y for line in other.lines for y in line.y]
    values = [y for y in values if y is not None and math.isfinite(y)]
    if values and not panel.grid:  # panels of the same quantity share its scale, so that they can be compared
        room = 0.05 * (max(values) - min(values)) or 0.05
        axes.set_ylim(min(values) - room, max(values) + room)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # not as a formula
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
