"""The report as Markdown, with figures as links to SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from redx.report.content import Figure, Table
from redx.report.sections import RunReport
from redx.report.tables import format_value, glossary, numeric_columns

Files = dict[tuple[str, Figure], str]  # by run and figure, the path of the SVG file relative to the page


def to_markdown(title: str, chapters: list[RunReport], compared: Table | None, files: Files) -> str:
    """Return the report as Markdown.

    Parameters
    ----------
    title
        Title of the page.
    chapters
        The content of the runs.
    compared
        The table that compares several runs; None for a single run.
    files
        Paths of the figures.

    Returns
    -------
    str
        The text. All names from data and settings are escaped.
    """
    lines = [f"# {_escape(title)}", "", *(table_lines(compared) if compared else ())]
    heading = "###" if compared else "##"
    for run in chapters:
        lines += [f"## {_escape(run.label)}", ""] if compared else []
        lines += [*(f"- {_escape(name)}: {_escape(value)}" for name, value in run.facts.items()), ""]
        lines += [" ".join(map(_escape, run.headline)), ""]
        for section in run.sections:
            lines += [f"{heading} {_escape(section.title)}", ""]
            for figure in section.figures:
                lines += [f"![{_escape(figure.caption)}]({files[run.label, figure]})", ""]
            for table in section.tables:
                lines += table_lines(table)
        lines += [f"{heading} Reproduce", "", f"    {run.command}", ""]
        if run.changed:
            lines += [f"Settings that differ from the preset: {', '.join(run.changed)}; see config.json.", ""]
    lines += ["## Glossary", ""]
    for table in glossary():
        lines += table_lines(table)
    return "\n".join(lines)


def table_lines(table: Table) -> Iterable[str]:
    """Yield the lines of a table; none if it has no rows."""
    if not table.rows:
        return
    yield from [f"**{_escape(table.title)}**", ""] if table.title else []
    yield f"| {' | '.join(map(_escape, table.columns))} |"
    yield f"|{'|'.join('---:' if right else '---' for right in numeric_columns(table))}|"
    yield from (f"| {' | '.join(_escape(format_value(cell)) for cell in row)} |" for row in table.rows)
    yield from ["", _escape(table.note), ""] if table.note else [""]


def _escape(text: str) -> str:
    """Return text on one line, with the characters of Markdown and HTML escaped."""
    return re.sub(r"([\\|*_\[\]])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")
