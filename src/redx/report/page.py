"""The report of a run: one self-contained page, the same in Markdown, and its figures as SVG."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.report.content import Figure, Table
from redx.report.figures import draw_figure, legend_lines, line_colours
from redx.report.sections import RunReport, format_value, glossary

Files = dict[tuple[str, Figure], str]  # where the figure of a run is, beside the page


def check_packages() -> None:
    """Refuse early where a package that the report needs is missing."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise RedxError(f"The report needs {' and '.join(missing)}; install with: pip install 'redx[report]'.")


def numeric_columns(table: Table) -> list[bool]:
    """For each column, whether it holds numbers and so stands to the right."""
    number = re.compile(r"—|[-+]?\d[\d.,]*(e[-+]\d+)?( \[.*)?")
    return [all(number.fullmatch(format_value(row[at])) for row in table.rows) for at in range(len(table.columns))]


def publish(chapters: list[RunReport], page: Path, title: str) -> Path:
    check_packages()
    comparison = Table("", ("run", *chapters[0].main), tuple((run.label, *run.main.values()) for run in chapters))
    compared = comparison if len(chapters) > 1 else None
    files: Files = {}
    for index, chapter in enumerate(chapters):
        for figure in (figure for section in chapter.sections for figure in section.figures):
            stem = slug(f"{chapter.label}-{figure.name}") if compared else slug(figure.name)
            while f"figures/{stem}.svg" in files.values():  # two names may be the same once they are made file names
                stem += f"-{index}"
            files[chapter.label, figure] = f"figures/{stem}.svg"
            write_bytes(page.parent / "figures" / f"{stem}.svg", draw_figure(figure, stem).encode())
    write_bytes(page.with_suffix(".md"), to_markdown(title, chapters, compared, files).encode())
    write_bytes(page, to_html(title, chapters, compared).encode())
    return page


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"


def to_html(title: str, chapters: list[RunReport], compared: Table | None) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def mark(text: str) -> Markup:
        """Escaped text in which `…` is code and an interval […] is small."""
        safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
        return Markup(re.sub(r"^([\d.]+) (\[[\d., ]+\])$", r"\1 <small>\2</small>", safe))

    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    page.filters |= {
        "show": format_value,
        "mark": mark,
        "align": numeric_columns,
        "paint": line_colours,
        "dashes": legend_lines,
    }
    page.globals |= {"draw": lambda figure, salt, panel: Markup(draw_figure(figure, salt, panel))}
    source = importlib.resources.files("redx.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    return page.from_string(source).render(title=title, chapters=chapters, compared=compared, glossary=glossary())


def to_markdown(title: str, chapters: list[RunReport], compared: Table | None, files: Files) -> str:
    def plain(text: str) -> str:
        return re.sub(r"([\\|*_\[\]])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")

    def table(found: Table) -> Iterable[str]:
        if found.rows:
            yield from [f"**{plain(found.title)}**", ""] if found.title else []
            yield f"| {' | '.join(map(plain, found.columns))} |"
            yield f"|{'|'.join('---:' if right else '---' for right in numeric_columns(found))}|"
            yield from (f"| {' | '.join(plain(format_value(cell)) for cell in row)} |" for row in found.rows)
            yield from ["", plain(found.note), ""] if found.note else [""]

    lines = [f"# {plain(title)}", ""]
    if compared:
        lines += table(compared)
    for run in chapters:
        deep = "##" if compared is None else "###"
        lines += [] if compared is None else [f"## {plain(run.label)}", ""]
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in run.facts.items()), ""]
        lines += [" ".join(map(plain, run.headline)), ""]
        for section in run.sections:
            lines += [f"{deep} {plain(section.title)}", ""]
            for figure in section.figures:
                lines += [f"![{plain(figure.caption)}]({files[run.label, figure]})", ""]
            for found in section.tables:
                lines += table(found)
        lines += [f"{deep} Reproduce", "", f"    {run.command}", ""]
        if run.changed:
            lines += [f"Settings that differ from the preset: {', '.join(run.changed)}; see config.json.", ""]
    lines += ["## Glossary", ""]
    for found in glossary():
        lines += table(found)
    return "\n".join(lines)
