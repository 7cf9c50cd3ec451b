"""The report as a self-contained HTML page, with figures as inline SVG."""

from __future__ import annotations

import importlib.resources
import re
from typing import TYPE_CHECKING

from redx.report.document import Report
from redx.report.figures import draw_panel_svg
from redx.report.markdown import Files
from redx.report.panels import INK, legend_of
from redx.report.tables import format_value, glossary, numeric_columns

if TYPE_CHECKING:
    from markupsafe import Markup


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
