"""The report as Markdown, with figures as links to SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from redx.report.content import Figure, Table
from redx.report.document import Report, Section
from redx.report.tables import format_value, glossary, numeric_columns

Files = dict[Figure, str]  # by figure, the path of the SVG file relative to the page


def to_markdown(report: Report, files: Files) -> str:
    """Return a report as Markdown.

    Parameters
    ----------
    report
        The content.
    files
        Paths of the figures.

    Returns
    -------
    str
        The text. All names from data and settings are escaped.
    """
    lines = [f"# {_escape(report.title)}", "", f"**{_escape(report.verdict)}**", ""]
    if report.findings:
        lines += [*(f"- {_escape(finding)}" for finding in report.findings), ""]
    lines += _tile_lines(report)
    for section in report.sections:
        lines += _section_lines(section, files, "##")
    if report.appendix:
        lines += ["## Appendix", ""]
    for section in report.appendix:
        lines += _section_lines(section, files, "###")
    lines += ["## Reproduce", ""]
    for source in report.sources:
        lines += [f"### {_escape(source.label)}", ""] if len(report.sources) > 1 else []
        lines += [*(f"- {_escape(name)}: {_escape(value)}" for name, value in source.facts.items()), ""]
        lines += [f"    {source.command}", ""]
        if source.changed:
            lines += [f"Settings that differ from the preset: {', '.join(source.changed)}; see config.json.", ""]
    lines += ["## Glossary", ""]
    for table in glossary():
        lines += table_lines(table)
    return "\n".join(lines)


def _tile_lines(report: Report) -> list[str]:
    """Return the tiles as a table with one column each."""
    if not report.tiles:
        return []
    labels = [label for label, _ in report.tiles[0].values]
    rows = [(label, *(tile.values[index][1] for tile in report.tiles)) for index, label in enumerate(labels)]
    if any(tile.note for tile in report.tiles):
        rows.append(("", *(tile.note for tile in report.tiles)))
    return list(table_lines(Table("", ("", *(tile.name for tile in report.tiles)), tuple(rows))))


def _section_lines(section: Section, files: Files, heading: str) -> list[str]:
    """Return a section; what the page folds away stands in <details>, which shows up in many renderers."""
    lines = [f"{heading} {_escape(section.title)}", ""]
    lines += [f"*{_escape(section.question)}*", ""] if section.question else []
    lines += [_escape(section.answer), ""] if section.answer else []
    lines += _contents(section.figures, section.tables, files)
    folded = _contents(section.more_figures, section.more_tables, files)
    return [*lines, "<details><summary>Numbers</summary>", "", *folded, "</details>", ""] if folded else lines


def _contents(figures: tuple[Figure, ...], tables: tuple[Table, ...], files: Files) -> list[str]:
    lines = []
    for figure in figures:
        findings = "; ".join(panel.title for panel in figure.panels if panel.title)
        lines += [f"**{_escape(findings)}**", ""] if findings else []
        lines += [f"![{_escape(figure.caption)}]({files[figure]})", "", _escape(figure.caption), ""]
    return lines + [line for table in tables for line in table_lines(table)]


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
