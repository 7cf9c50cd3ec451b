"""The content of reports and studies as plain values: tables and figures, which the page formats and draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Place = Literal["", "performance", "stability", "modularity", "efficiency"]  # section of a report; "": the appendix


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes
    ----------
    title, note
        Text above and below the table; may be empty.
    columns
        Names of the columns.
    rows
        Cells by row: numbers, texts, or None for a missing value.
    place
        The section that it belongs to.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    note: str = ""
    place: Place = ""


@dataclass(frozen=True)
class Line:
    """A curve of a figure, or its dots.

    Attributes
    ----------
    name
        Name of the line; a rule has the same colour in every figure.
    x, y
        Coordinates of the points; in a panel with `rows`, y is the number of the row.
    dashed
        Whether the curve is a reference, which is drawn dashed.
    low, high
        Ends of the interval of every x, where there are any.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure: curves, dots or bars by row, or a surface.

    Attributes
    ----------
    title, x, y
        Title, which states the finding, and labels of the axes.
    lines
        The curves or dots.
    grid, extent
        Values of a surface by row, and the ends of the axes: left, right, bottom, top.
    log_x
        Whether the x axis is logarithmic.
    rows, columns
        Names of the rows of dots or bars, from top to bottom; with a grid, names of its rows and columns.
    notes
        Text at the right end of every row.
    bars
        Whether the values of the rows are drawn as bars.
    bound
        A value that the dots of the rows are compared with, drawn as a dashed line.
    """

    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    grid: tuple[tuple[float, ...], ...] = ()
    extent: tuple[float, float, float, float] | None = None
    log_x: bool = False
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bars: bool = False
    bound: float | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of the report: panels with one caption.

    Attributes
    ----------
    name
        Name of the figure, from which the name of its file is made.
    caption
        Text below the figure.
    panels
        The panels, from left to right.
    place
        The section that it belongs to.
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]
    place: Place = ""


@dataclass(frozen=True)
class Study:
    """The results of the additional experiments of a task.

    Attributes
    ----------
    facts
        Values for summary.json.
    tables, figures
        Tables and figures for the report.
    state
        Hashes of the experts that it was made with, by seed; a run sets them.
    """

    facts: dict[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    state: dict[str, str] = field(default_factory=dict)
