"""What a study hands to the report: facts, tables and figures as plain values, drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of a study, ready to be drawn by the report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One curve of a figure."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves, or (with `grid`) a picture of a surface over the square `extent`."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    grid: tuple[tuple[float, ...], ...] = ()
    extent: tuple[float, float, float, float] | None = None
    log_x: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of a study: panels side by side with one caption."""

    name: str
    caption: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Study:
    """What a task measures beyond the rules: facts for summary.json, tables and figures for the report."""

    facts: dict[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
