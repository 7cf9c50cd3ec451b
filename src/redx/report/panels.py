"""Draw the panels of a figure: curves with labels at their ends, dots and bars by row, heat maps, surfaces."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from redx.report.colours import NEUTRAL, OTHERS, colour_of, label_of
from redx.report.content import Line, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  # drawn in this colour, which is then replaced by the text colour of the page
MAX_LABELS = 8  # curves that are labelled at their ends; more get a legend
WIDTH, HEIGHT = 4.2, 2.7  # of a panel in inches
ROW, HEAD = 0.235, 0.75  # height of a row, and of axis and margins
LONGEST = 22  # characters of a name beside a row


def panel_height(panel: Panel) -> float:
    """Return the height of a panel in inches, which grows with its rows."""
    if not panel.rows:
        return HEIGHT
    row = ROW * (1.4 if legend_of(panel) else 1.0)  # room for several dots
    height = HEAD + row * len(panel.rows) + (0.35 if panel.columns else 0.0) - (0.35 if panel.bars else 0.0)
    return max(height, 1.3)


def line_colours(lines: tuple[Line, ...]) -> dict[str, str]:
    """Return the colour of every line: that of its rule, the ink for other dashed lines, else one that is free."""
    names = list(dict.fromkeys(line.name for line in lines))
    dashed = {line.name for line in lines if line.dashed}
    used = {colour_of(name) for name in names}
    free = [colour for colour in OTHERS if colour not in used] or list(OTHERS)
    others = [name for name in names if colour_of(name) is None and name not in dashed]
    chosen = {name: free[index % len(free)] for index, name in enumerate(others)}
    return {name: colour_of(name) or chosen.get(name, INK) for name in names}


def legend_of(panel: Panel) -> list[tuple[str, str, bool]]:
    """Return label, colour and dash of the lines that need a legend; none where names stand beside the lines."""
    if panel.grid or panel.bars:
        return []
    several = [line for line in panel.lines if len(line.x) > 1]
    needed = len(several) > 1 if panel.rows else len(panel.lines) > MAX_LABELS
    colours = line_colours(panel.lines)
    return [(label_of(line.name), colours[line.name], line.dashed) for line in panel.lines] if needed else []


def draw_panel(axes: Axes, panel: Panel, y_range: tuple[float, float] | None) -> None:
    """Draw a panel without its title; `y_range` is the common range of panels of the same quantity."""
    if panel.grid and panel.rows:
        _draw_heat_map(axes, panel)
    elif panel.grid:
        _draw_surface(axes, panel)
    elif panel.rows:
        _draw_rows(axes, panel)
    else:
        _draw_curves(axes, panel, y_range)
    axes.set(xlabel="" if panel.bars else textwrap.fill(panel.x, 52), ylabel=short(panel.y, 36))


def _draw_curves(axes: Axes, panel: Panel, y_range: tuple[float, float] | None) -> None:
    colours = line_colours(panel.lines)
    for index, line in enumerate(panel.lines):
        style: dict[str, Any] = {"linestyle": (0, (3, 2)), "zorder": 4} if line.dashed else {"zorder": 3 - index / 100}
        if len(line.x) <= 12 and not line.dashed:
            style |= {"marker": "o", "markersize": 3.5}
        # Later lines are wider and lie below the earlier ones, so that curves that coincide stay visible.
        axes.plot(line.x, line.y, color=colours[line.name], linewidth=1.6 + 0.4 * index * (not line.dashed), **style)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # plain numbers, not powers of ten
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if y_range:
        axes.set_ylim(*y_range)
    ends = [x for line in panel.lines for x in line.x]
    if ends:
        axes.set_xlim(right=max(ends))
    if not legend_of(panel):
        _label_ends(axes, panel, colours)


def _label_ends(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    """Write the name of every curve beside its right end, apart from each other."""
    low, high = axes.get_ylim()
    last = max((x for line in panel.lines for x in line.x), default=0.0)
    ends = []
    for line in panel.lines:
        points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None and math.isfinite(y)]
        if points and max(points)[0] < last:  # a shorter curve is labelled where it ends
            axes.annotate(
                f" {short(label_of(line.name))}", max(points), xytext=(3, 0), textcoords="offset points", va="center"
            )
        elif points:
            ends.append((min(1.0, max(0.0, (max(points)[1] - low) / (high - low))), line.name))
    ends.sort()
    heights = spread([height for height, _ in ends], 0.085)
    for (end, name), height in zip(ends, heights, strict=True):
        axes.plot(
            [1.0, 1.035], [end, height], color=colours[name], linewidth=1.2, clip_on=False, transform=axes.transAxes
        )
        axes.text(1.045, height, short(label_of(name)), transform=axes.transAxes, va="center", ha="left", fontsize=9)


def spread(heights: list[float], gap: float) -> list[float]:
    """Return sorted heights in [0, 1] moved apart to at least this gap, as little as a few passes need.

    Examples
    --------
    >>> [round(height, 2) for height in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    moved, gap = list(heights), min(gap, 1 / max(1, len(heights) - 1))
    for _ in range(200):
        for index in range(len(moved) - 1):
            lack = gap - (moved[index + 1] - moved[index])
            if lack > 1e-9:
                moved[index] -= lack / 2
                moved[index + 1] += lack / 2
        if moved and moved[0] < 0:
            moved[0] = 0.0
        if moved and moved[-1] > 1:
            moved[-1] = 1.0
    return moved


def _draw_rows(axes: Axes, panel: Panel) -> None:
    """Draw dots with intervals, or bars, in rows from top to bottom."""
    count = len(panel.rows)
    colours = line_colours(panel.lines)
    axes.grid(False, axis="y")
    if panel.bars:
        for line in panel.lines:
            axes.barh(line.y, line.x, height=0.62, color=NEUTRAL, alpha=0.75)
        axes.set_xlim(left=0)
        axes.xaxis.set_visible(False)  # every bar has its value beside it
        axes.spines["bottom"].set_visible(False)
    else:
        _draw_dots(axes, panel, colours)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks(range(count), [short(name) for name in panel.rows])
    axes.tick_params(axis="y", length=0)
    for label in axes.get_yticklabels():
        if label.get_text() == label_of("red"):
            label.set_fontweight("bold")
    for row, note in enumerate(panel.notes):
        axes.text(1.03, row, note, transform=axes.get_yaxis_transform(), va="center", ha="left", fontsize=9)


def _draw_dots(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    series = sum(len(line.x) > 1 for line in panel.lines)
    values = [x for line in panel.lines for x in line.x]
    left, right = dot_range(values)
    inside = [line for line in panel.lines if line.low and all(left <= x <= right for x in line.x)]
    reach = [end for line in inside for end in (*line.low, *line.high)]
    margin = 0.06 * (right - left) or 0.02
    left, right = min([left, *reach]) - margin, max([right, *reach]) + margin
    for index, line in enumerate(panel.lines):
        shift = 0.17 * (index - (len(panel.lines) - 1) / 2) if series > 1 else 0.0
        colour = colours[line.name]
        for point, (x, row) in enumerate(zip(line.x, line.y, strict=True)):
            if line.low:
                axes.plot([line.low[point], line.high[point]], [row + shift] * 2, color=colour, linewidth=2, alpha=0.55)
            marker = "o" if left <= x <= right else "<" if x < left else ">"
            edge = min(max(x, left + margin / 3), right - margin / 3)
            axes.plot([edge], [row + shift], marker=marker, markersize=5.5, color=colour, zorder=4 + index / 100)
    if panel.bound is not None:
        left, right = min(left, panel.bound - margin), max(right, panel.bound + margin)
        axes.axvline(panel.bound, color=INK, linewidth=1, linestyle="--", alpha=0.8, zorder=1)
    axes.set_xlim(left, right)
    if left < 0 < right:
        axes.axvline(0, color=INK, linewidth=0.8, alpha=0.6, zorder=1)
    axes.hlines(range(len(panel.rows)), left, right, color=INK, linewidth=0.5, alpha=0.12, zorder=0)


def dot_range(values: list[float]) -> tuple[float, float]:
    """Return the range of an axis that shows most values well; values far from the others lie outside.

    Examples
    --------
    >>> dot_range([0.95, 0.96, 0.97, 0.94, 0.01])[0] > 0.5
    True
    """
    ordered = sorted(values)
    centre = ordered[len(ordered) // 2]
    distances = sorted(abs(value - centre) for value in values)
    reach = 6 * distances[int(0.6 * (len(distances) - 1))] or distances[-1]
    return max(ordered[0], centre - reach), min(ordered[-1], centre + reach)


def _draw_heat_map(axes: Axes, panel: Panel) -> None:
    """Draw a cell for every row and column, in a colour that shines through light and dark pages alike."""
    from matplotlib.patches import Rectangle

    largest = max((abs(value) for row in panel.grid for value in row), default=0.0) or 1.0
    for y, row in enumerate(panel.grid):
        for x, value in enumerate(row):
            colour = colour_of("red") if value >= 0 else colour_of("moe")
            cell = Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, alpha=0.04 + 0.7 * abs(value) / largest)
            cell.set_linewidth(0)
            axes.add_patch(cell)
            if len(panel.columns) <= 10 and largest >= 0.05 and abs(value) >= 0.01 * largest:
                axes.text(
                    x, y, f"{value:.1f}" if largest >= 1 else f"{value:.2f}", ha="center", va="center", fontsize=7.5
                )
    axes.grid(False)
    axes.set(xlim=(-0.5, len(panel.columns) - 0.5), ylim=(len(panel.rows) - 0.5, -0.5))
    axes.set_xticks(range(len(panel.columns)), [short(name, 14) for name in panel.columns])
    if max(map(len, panel.columns)) * len(panel.columns) > 40:
        for label in axes.get_xticklabels():
            label.set(rotation=38, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(panel.rows)), [short(name) for name in panel.rows])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_surface(axes: Axes, panel: Panel) -> None:
    import numpy

    surface = numpy.array(panel.grid, dtype=float)  # a missing value is None in JSON and NaN here
    axes.grid(False)
    picture = axes.imshow(surface, origin="lower", extent=panel.extent, aspect="auto", interpolation="nearest")
    low, high = numpy.nanmin(surface), numpy.nanmax(surface)
    picture.set_clim(low, high if high > low else low + 1)  # a constant surface gets the lowest colour
    axes.figure.colorbar(picture, ax=axes).outline.set_visible(False)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


def short(name: str, longest: int = LONGEST) -> str:
    """Return a name of at most this many characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
