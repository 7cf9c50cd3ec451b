"""The report as a self-contained HTML page, with figures as inline SVG."""

from __future__ import annotations

import importlib.resources
import re
from typing import TYPE_CHECKING

from redx.report.content import Table
from redx.report.figures import draw_figure, legend_lines, line_colours
from redx.report.sections import RunReport
from redx.report.tables import format_value, glossary, numeric_columns

if TYPE_CHECKING:
    from markupsafe import Markup


def to_html(title: str, chapters: list[RunReport], compared: Table | None) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    title
        Title of the page.
    chapters
        The content of the runs.
    compared
        The table that compares several runs; None for a single run.

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
        "colours": line_colours,
        "legend": legend_lines,
    }
    environment.globals |= {"draw": lambda figure, salt, panel: Markup(draw_figure(figure, salt, panel))}
    source = importlib.resources.files("redx.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = environment.from_string(source)
    return template.render(title=title, chapters=chapters, compared=compared, glossary=glossary())


def _mark(text: str) -> Markup:
    """Return escaped text in which `…` is code and the interval of a number is small."""
    from markupsafe import Markup, escape

    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"^([\d.]+) (\[[\d., ]+\])$", r"\1 <small>\2</small>", safe))
