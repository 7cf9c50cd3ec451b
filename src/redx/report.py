"""The report of a run: one self-contained page, the same in Markdown, and its figures as SVG."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from redx import store
from redx.chapter import Chapter, Summary, explain, show, tell
from redx.config import RunConfig
from redx.drawing import dashes, draw, paint
from redx.errors import RedxError
from redx.findings import Figure, Study, Table
from redx.io.files import read_json, write_bytes

Files = dict[tuple[str, Figure], str]  # where the figure of a run is, beside the page


def check() -> None:
    """Refuse early where a package that the report needs is missing."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise RedxError(f"The report needs {' and '.join(missing)}; install with: pip install 'redx[report]'.")


def write(folder: Path, config: RunConfig, summary: Summary, study: Study | None) -> Path:
    """Write report.html, report.md and figures/*.svg into a run folder."""
    chapter = tell(config.task, config, summary, study)
    return _publish([chapter], folder / "report.html", f"{config.task}, {config.preset}")


def combine(folders: Sequence[Path], out: Path) -> Path:
    """One page for several finished runs, at `out` (a folder or an .html file); one alone is written in its place."""
    if not folders:
        raise RedxError("There is no run to report on; give the folder of at least one finished run.")
    runs = [(store.read_config(at), read_json(at / "summary.json"), read_study(at)) for at in folders]
    if len(folders) == 1:
        return write(folders[0], *runs[0])
    names = [folder.resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    chapters = [tell(label, *run) for label, run in zip(labels, runs, strict=True)]
    page = out if out.suffix == ".html" else out / "report.html"
    return _publish(chapters, page, f"{len(chapters)} runs compared")


def read_study(folder: Path) -> Study | None:
    """The study of a run folder, if it has one."""
    path = folder / "study.json"
    if not path.exists():
        return None
    try:
        return TypeAdapter(Study).validate_python(read_json(path))
    except ValidationError as error:
        raise RedxError(f"{path} does not hold a study; delete it and repeat the run.") from error


def align(table: Table) -> list[bool]:
    """For each column, whether it holds numbers and so stands to the right."""
    number = re.compile(r"—|[-+]?\d[\d.,]*(e[-+]\d+)?( \[.*)?")
    return [all(number.fullmatch(show(row[at])) for row in table.rows) for at in range(len(table.columns))]


def _publish(chapters: list[Chapter], page: Path, title: str) -> Path:
    check()
    comparison = Table("", ("run", *chapters[0].main), tuple((run.label, *run.main.values()) for run in chapters))
    compared = comparison if len(chapters) > 1 else None
    files: Files = {}
    for index, chapter in enumerate(chapters):
        for figure in (figure for section in chapter.sections for figure in section.figures):
            stem = slug(f"{chapter.label}-{figure.name}") if compared else slug(figure.name)
            while f"figures/{stem}.svg" in files.values():  # two names may be the same once they are made file names
                stem += f"-{index}"
            files[chapter.label, figure] = f"figures/{stem}.svg"
            write_bytes(page.parent / "figures" / f"{stem}.svg", draw(figure, stem).encode())
    write_bytes(page.with_suffix(".md"), to_markdown(title, chapters, compared, files).encode())
    write_bytes(page, to_html(title, chapters, compared).encode())
    return page


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"


def to_html(title: str, chapters: list[Chapter], compared: Table | None) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def mark(text: str) -> Markup:
        """Escaped text in which `…` is code and an interval […] is small."""
        safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
        return Markup(re.sub(r"^([\d.]+) (\[[\d., ]+\])$", r"\1 <small>\2</small>", safe))

    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    page.filters |= {"show": show, "mark": mark, "align": align, "paint": paint, "dashes": dashes}
    page.globals |= {"draw": lambda figure, salt, panel: Markup(draw(figure, salt, panel))}
    source = importlib.resources.files("redx").joinpath("report.html.j2").read_text(encoding="utf-8")
    return page.from_string(source).render(title=title, chapters=chapters, compared=compared, glossary=explain())


def to_markdown(title: str, chapters: list[Chapter], compared: Table | None, files: Files) -> str:
    def plain(text: str) -> str:
        return re.sub(r"([\\|*_\[\]])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")

    def table(found: Table) -> Iterable[str]:
        if found.rows:
            yield from [f"**{plain(found.title)}**", ""] if found.title else []
            yield f"| {' | '.join(map(plain, found.columns))} |"
            yield f"|{'|'.join('---:' if right else '---' for right in align(found))}|"
            yield from (f"| {' | '.join(plain(show(cell)) for cell in row)} |" for row in found.rows)
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
    for found in explain():
        lines += table(found)
    return "\n".join(lines)
