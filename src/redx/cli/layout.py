"""How tables and sentences fit the width of a terminal, without a cut cell and without a broken word."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

HEADING, LONGEST = 9, 14  # cells of a stacked heading, and of a word in it that is not broken
BORDER = 3  # cells that a column takes beside its own; a table takes one more
PIECES = re.compile(r"\s+|\S+?(?:(?<=[_\-/.,:|=])(?=[^\W\d_])|(?=\s)|$)")  # words, and parts of names such as a_b


@dataclass(frozen=True)
class Layout:
    """A table as it is printed.

    Attributes
    ----------
    columns
        Which columns it shows, by their place.
    headings
        Their titles, in lines.
    rows
        Their cells, in lines.
    """

    columns: tuple[int, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def fold(text: str, width: int) -> str:
    """Return text in lines of at most this many cells, that end at spaces, or in names after `_`, `-` or `/`.

    Examples
    --------
    >>> fold("kitchen_and_dining", 12).split()
    ['kitchen_and_', 'dining']
    """
    lines = [""]
    for line in text.split("\n"):
        for piece in PIECES.findall(line):
            if cell_len(lines[-1] + piece.rstrip()) <= width:
                lines[-1] += piece
            elif not piece.isspace():
                lines[-1:] = [*filter(None, lines[-1:]), *chop_cells(piece, width)]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines[:-1])


def stack(heading: str) -> str:
    """Return the title of a column in lines of few characters."""
    longest = max((cell_len(piece.rstrip()) for piece in PIECES.findall(heading)), default=0)
    return fold(heading, max(HEADING, min(longest, LONGEST)))


def is_numeric(cells: Sequence[str]) -> bool:
    """Return whether all cells of a column are numbers, or empty."""
    return all(cell[:1].isdigit() or cell in ("", "—") for cell in cells)


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, stacked: bool, spare: Sequence[str]
) -> tuple[list[Layout], list[str]]:
    """Return a table as one or more tables that fit a width, and the columns that are left out.

    Headings are broken into lines first, then spare columns are left out, then texts take further lines. Where the
    numbers alone are too wide, they come in several tables, each with the first column.

    Parameters
    ----------
    columns, rows
        Titles of the columns, and cells by row.
    width
        Cells of a line.
    stacked
        Break the titles of columns into lines of few characters even where there is room.
    spare
        Columns that are left out, one after the other, where the table is too wide.
    """
    cells = [[row[index] for row in rows] for index in range(len(columns))]
    whole = [_widest([name, *cells[index]]) for index, name in enumerate(columns)]
    if not stacked and _total(whole) <= width:
        return [_finish(range(len(columns)), columns, rows, whole)], []
    headings = [stack(name) for name in columns]
    whole = [_widest([headings[index], *cells[index]]) for index in range(len(columns))]
    shown, left_out = list(range(len(columns))), []
    for name in spare:
        if name in columns and _total([whole[index] for index in shown]) > width:
            shown.remove(columns.index(name))
            left_out.append(name)
    least = {
        index: whole[index] if index > 0 and is_numeric(cells[index]) else _least(headings[index], cells[index], width)
        for index in shown
    }
    layouts = []
    for group in _groups(shown, least, width):
        widths = _share([whole[index] for index in group], [least[index] for index in group], width)
        layouts.append(_finish(group, headings, rows, widths))
    return layouts, left_out


def _groups(shown: list[int], least: dict[int, int], width: int) -> list[list[int]]:
    """Return the columns of each table: all in one where they fit, else each table begins with the first column."""
    groups = [shown[:1]]
    for index in shown[1:]:
        if len(groups[-1]) > 1 and _total([least[one] for one in (*groups[-1], index)]) > width:
            groups.append(shown[:1])
        groups[-1].append(index)
    return groups


def _share(whole: list[int], least: list[int], width: int) -> list[int]:
    """Return widths between the least and the whole ones: the widest columns give cells away first."""
    widths = list(whole)
    while _total(widths) > width:
        able = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not able:
            return widths
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def _least(heading: str, cells: Sequence[str], width: int) -> int:
    """Return how narrow a column of text may be: as its longest piece of a word, within limits."""
    pieces = [piece.rstrip() for text in cells for piece in PIECES.findall(text)]
    longest = max(map(cell_len, pieces), default=0)
    return min(max(_widest([heading]), min(longest, width // 4), 1), _widest([heading, *cells]))


def _finish(
    shown: Sequence[int], headings: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]
) -> Layout:
    titles = tuple(fold(headings[index], room) for index, room in zip(shown, widths, strict=True))
    lines = (tuple(fold(row[index], room) for index, room in zip(shown, widths, strict=True)) for row in rows)
    return Layout(tuple(shown), titles, tuple(lines))


def _widest(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + BORDER * len(widths) + 1


def wrap(line: str, width: int) -> str:
    """Return a sentence in lines that end at spaces; paths and other long words stay whole."""
    if cell_len(line) <= width:
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
