"""The files of a report: one self-contained HTML page, the same content in Markdown, and the figures as SVG."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.report.content import Table
from redx.report.figures import draw_figure
from redx.report.html import to_html
from redx.report.markdown import Files, to_markdown
from redx.report.sections import RunReport


def check_packages() -> None:
    """Raise `RedxError` if a package that the report needs is not installed."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise RedxError(f"The report needs {' and '.join(missing)}; install with: pip install 'redx[report]'.")


def publish(chapters: list[RunReport], page: Path, title: str) -> Path:
    """Write the report of one run, or a page that compares several runs.

    Parameters
    ----------
    chapters
        The content of the runs, one or more.
    page
        The HTML file to write; the Markdown file and the folder `figures` are written to the same folder.
    title
        Title of the page.

    Returns
    -------
    Path
        The HTML file.
    """
    check_packages()
    comparison = Table("", ("run", *chapters[0].main), tuple((run.label, *run.main.values()) for run in chapters))
    compared = comparison if len(chapters) > 1 else None
    files: Files = {}
    for index, run in enumerate(chapters):
        for figure in (figure for section in run.sections for figure in section.figures):
            stem = slug(f"{run.label}-{figure.name}") if compared else slug(figure.name)
            while f"figures/{stem}.svg" in files.values():  # different names may give the same file name
                stem += f"-{index}"
            files[run.label, figure] = f"figures/{stem}.svg"
            write_bytes(page.parent / "figures" / f"{stem}.svg", draw_figure(figure, stem).encode())
    write_bytes(page.with_suffix(".md"), to_markdown(title, chapters, compared, files).encode())
    write_bytes(page, to_html(title, chapters, compared).encode())
    return page


def slug(name: str) -> str:
    """Return a name as the stem of a file name: lower-case letters, digits and hyphens.

    Examples
    --------
    >>> slug("Price of safety (ε)")
    'price-of-safety'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"
