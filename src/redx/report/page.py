"""The files of a report: one self-contained HTML page, the same content in Markdown, and the figures as SVG."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.report.document import Report
from redx.report.figures import draw_figure, draw_panel_svg
from redx.report.markdown import Files, to_markdown
from redx.report.panels import INK, legend_of
from redx.report.tables import format_value, glossary, numeric_columns

if TYPE_CHECKING:
    from markupsafe import Markup


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


# --- HTML


def to_html(report: Report, files: Files) -> str:
    """Return a report as HTML.

    Parameters
    ----------
    report
        The content.
    files
        Paths of the figures, from which ids that are unique in the page are made.

    Returns
    -------
    str
        A page that needs no other file and no network. All names from data and settings are escaped.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {
        "show": format_value,
        "mark": _mark,
        "numeric_columns": numeric_columns,
        "legend": legend_of,
        "css": lambda colour: "currentColor" if colour == INK else colour,
    }
    environment.globals |= {"draw": lambda figure, panel: Markup(draw_panel_svg(figure, panel, files[figure]))}
    source = importlib.resources.files("redx.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(report=report, glossary=glossary())


def _mark(text: str) -> Markup:
    """Return escaped text in which `…` is code and the interval of a number is small."""
    from markupsafe import Markup, escape

    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"^([-+−]?[\d.]+) (\[[-+−\d., ]+\])$", r"\1 <small>\2</small>", safe))
