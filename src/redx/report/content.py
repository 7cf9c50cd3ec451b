"""The content of a study as plain values: facts, tables and figures, which the report formats and draws."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A curve of a figure.

    Attributes
    ----------
    name
        Name in the legend; a rule has the same colour in every figure.
    x, y
        Coordinates of the points.
    dashed
        Whether the curve is a reference, which is drawn dashed.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure, with curves or with a surface.

    Attributes
    ----------
    title, x, y
        Title, and labels of the axes.
    lines
        The curves.
    grid, extent
        Values of a surface by row, and the ends of the axes: left, right, bottom, top.
    log_x
        Whether the x axis is logarithmic.
    """

    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    grid: tuple[tuple[float, ...], ...] = ()
    extent: tuple[float, float, float, float] | None = None
    log_x: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of the report: panels with one caption and one legend.

    Attributes
    ----------
    name
        Name of the figure, from which the name of its file is made.
    caption
        Text below the figure.
    panels
        The panels, from left to right.
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Study:
    """The results of the additional experiments of a task.

    Attributes
    ----------
    facts
        Values for summary.json.
    tables, figures
        Tables and figures for the report.
    """

    facts: dict[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
