"""The files of a report: one self-contained HTML page, the same content in Markdown, and the figures as SVG."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.report.document import Report
from redx.report.figures import draw_figure
from redx.report.html import to_html
from redx.report.markdown import Files, to_markdown


def check_packages() -> None:
    """Raise `RedxError` if a package that the report needs is not installed."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise RedxError(f"The report needs {' and '.join(missing)}; install with: pip install 'redx[report]'.")


def publish(report: Report, page: Path) -> Path:
    """Write a report.

    Parameters
    ----------
    report
        The content.
    page
        The HTML file to write; the Markdown file and the folder `figures` are written to the same folder.

    Returns
    -------
    Path
        The HTML file.
    """
    check_packages()
    files: Files = {}
    for index, figure in enumerate(
        figure
        for section in (*report.sections, *report.appendix)
        for figure in (*section.figures, *section.more_figures)
    ):
        stem = slug(figure.name)
        while f"figures/{stem}.svg" in files.values():  # different names may give the same file name
            stem += f"-{index}"
        files[figure] = f"figures/{stem}.svg"
        write_bytes(page.parent / "figures" / f"{stem}.svg", draw_figure(figure, files[figure]).encode())
    write_bytes(page.with_suffix(".md"), to_markdown(report, files).encode())
    write_bytes(page, to_html(report, files).encode())
    return page


def slug(name: str) -> str:
    """Return a name as the stem of a file name: lower-case letters, digits and hyphens.

    Examples
    --------
    >>> slug("Price of safety (ε)")
    'price-of-safety'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"
