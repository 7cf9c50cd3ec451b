"""Figures as SVG: the same every time, for the page or for a file of their own."""

from __future__ import annotations

from helpers.reports import STUDY
from redx.report.figures import draw_figure


def test_figures_follow_the_colours_of_the_page_or_have_their_own() -> None:
    figure = STUDY.figures[0]
    assert draw_figure(figure, "a") == draw_figure(figure, "a")
    assert "prefers-color-scheme" in draw_figure(figure, "a")
    assert "<style" not in draw_figure(figure, "a", figure.panels[0])
