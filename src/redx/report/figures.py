"""Figures as SVG text: they follow the light or dark mode of the page, and the same figure gives the same bytes."""

from __future__ import annotations

import io
import math
import re
import textwrap
from functools import lru_cache
from typing import Any
from xml.sax.saxutils import escape

from redx.report.content import Figure, Panel
from redx.report.panels import INK, WIDTH, draw_panel, legend_of, panel_height

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.titlesize": 10},
    **{"axes.grid": True, "grid.alpha": 0.15, "grid.linewidth": 0.7, "axes.axisbelow": True, "font.size": 9.5},
    **{"axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "image.cmap": "cividis"},
    **{"svg.fonttype": "none", "text.parse_math": False},  # names from users are not formulas
}
GAP = 18  # points between panels
ALONE = (  # style of a figure that is a file of its own, where no page sets the text colour
    "<style>svg{color:#1d2127;fill:currentColor;font:9px system-ui,sans-serif}*{stroke-linejoin:round}"
    "text{font-family:system-ui,sans-serif!important}.title{font-size:11px;font-weight:600}"
    "@media(prefers-color-scheme:dark){svg{color:#e4e6ea}}</style>"
)


def draw_panel_svg(figure: Figure, panel: Panel, salt: str) -> str:
    """Return one panel of a figure as SVG, without its title and legend, which the page writes.

    Parameters
    ----------
    figure
        The figure, whose panels of the same quantity share an axis.
    panel
        The panel to draw.
    salt
        Text from which the ids in the SVG are made, so that they are unique in a page.

    Returns
    -------
    str
        The SVG element, without width and height.
    """
    return _draw(panel, _common_range(panel, figure), f"{salt}/{figure.panels.index(panel)}")


@lru_cache(maxsize=512)  # a panel stands in the page and in the file of its figure
def _draw(panel: Panel, y_range: tuple[float, float] | None, salt: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {**STYLE, "svg.hashsalt": salt}
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=(WIDTH, panel_height(panel)), layout="constrained")
        draw_panel(canvas.subplots(), panel, y_range)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # Remove the XML prologue, metadata with URLs, styles that would apply to the whole page, and unused ids.
    svg = buffer.getvalue().decode()
    svg = re.sub(r"(?s)^.*?(?=<svg)|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor")
    head, _, body = svg.partition(">")
    return re.sub(r' (width|height|version|xmlns(:xlink)?)="[^"]*"', "", head) + f">{body}"  # the page sets the size


def draw_figure(figure: Figure, salt: str) -> str:
    """Return a whole figure as the SVG of a file of its own: the panels in two columns, with titles and legends.

    Parameters
    ----------
    figure
        The figure to draw.
    salt
        Text from which the ids in the SVG are made.
    """
    columns = max(1, min(2, len(figure.panels)))
    width, y, pieces = 72 * WIDTH, 0.0, []
    for start in range(0, len(figure.panels), columns):
        row = figure.panels[start : start + columns]
        heads = [_head(panel) for panel in row]
        top = max(height for _, height in heads)
        for column, (panel, (head, _)) in enumerate(zip(row, heads, strict=True)):
            x = column * (width + GAP)
            drawn = draw_panel_svg(figure, panel, salt).replace("<svg", "", 1)
            box = f'x="{x}" y="{y + top}" width="{width}" height="{72 * panel_height(panel)}"'
            pieces.append(f'<g transform="translate({x} {y})">{head}</g><svg {box}{drawn}')
        y += top + 72 * max(map(panel_height, row)) + GAP
    whole = f"0 0 {columns * (width + GAP) - GAP} {max(y - GAP, 1)}"
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {names} viewBox="{whole}">{ALONE}{"".join(pieces)}</svg>'


def _head(panel: Panel) -> tuple[str, float]:
    """Return title and legend of a panel as SVG, and their height in points."""
    lines = textwrap.wrap(panel.title, 44)
    texts = [
        f'<text x="4" y="{14 + 14 * number}" class="title">{escape(line)}</text>' for number, line in enumerate(lines)
    ]
    height, x = 8.0 + 14 * len(lines), 4.0
    entries = legend_of(panel)
    for label, colour, dashed in entries:
        colour = colour.replace(INK, "currentColor")
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        texts.append(f'<path d="M{x} {height + 6}h16" stroke="{colour}" stroke-width="3"{dash}/>')
        texts.append(f'<text x="{x + 20}" y="{height + 9}">{escape(label)}</text>')
        x += 34 + 5.5 * len(label)
        if x > 72 * WIDTH - 60:
            height, x = height + 14, 4.0
    return "".join(texts), height + (16 if entries else 0)


def _common_range(panel: Panel, figure: Figure) -> tuple[float, float] | None:
    """Return the range of the y axis, which panels of the same quantity share, so that readers can compare them."""
    same = [other for other in figure.panels if (other.y, other.log_x) == (panel.y, panel.log_x)]
    others = [other for other in same if not other.rows and not other.grid]
    values = [y for other in others for line in other.lines for y in line.y if y is not None and math.isfinite(y)]
    if not values or panel.rows or panel.grid:
        return None
    margin = 0.05 * (max(values) - min(values)) or 0.05
    return min(values) - margin, max(values) + margin
