"""Figures as SVG: the same every time, for the page or for a file of their own, with one colour per rule."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from helpers.reports import STUDY
from redx.composition.rules import RULES
from redx.report.colours import colour_of
from redx.report.content import Figure, Line, Panel
from redx.report.figures import draw_figure, draw_panel_svg
from redx.report.panels import legend_of, line_colours, spread

DOTS = Panel(
    "dots",
    "x",
    "",
    (Line("red", (0.9, 0.8), (0, 1)), Line("moe", (0.7, 0.1), (0, 1))),
    rows=("a", "b"),
    notes=("1", "2"),
)
KINDS = {
    "curves": Panel("curves", "x", "y", (Line("red", (0, 1), (0, 1)), Line("base", (0, 1), (1, 1), dashed=True))),
    "dots": DOTS,
    "interval": Panel("one", "x", "", (Line("red", (0.5,), (0,), low=(0.4,), high=(0.6,)),), rows=("a",)),
    "bars": Panel("bars", "s", "", (Line("s", (3.0, 1.0), (0, 1)),), rows=("a", "b"), notes=("3", "1"), bars=True),
    "heat map": Panel("heat", "k", "d", grid=((1.0, -2.0), (0.0, 0.5)), rows=("a", "b"), columns=("a", "b")),
    "zeros": Panel("heat", "k", "d", grid=((0.0,),), rows=("a",), columns=("a",)),
}


def test_figures_follow_the_colours_of_the_page_or_have_their_own() -> None:
    figure = STUDY.figures[0]
    assert draw_figure(figure, "a") == draw_figure(figure, "a")
    assert "prefers-color-scheme" in draw_figure(figure, "a")
    assert "<style" not in draw_panel_svg(figure, figure.panels[0], "a")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_panel_is_drawn(kind: str) -> None:
    figure = Figure(kind, "A caption.", (KINDS[kind], STUDY.figures[0].panels[0]))
    svg = draw_figure(figure, "a")
    ElementTree.fromstring(svg)
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert KINDS[kind].title in svg
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(ids) == len(set(ids))


def test_every_rule_has_a_colour_of_its_own_and_a_label() -> None:
    colours = {rule.colour for rule in RULES.values()}
    assert None not in colours
    assert len(colours) == len(RULES)
    assert all(rule.label and rule.about for rule in RULES.values())


def test_a_rule_has_the_same_colour_whatever_is_beside_it() -> None:
    lines = tuple(Line(name, (0,), (0,)) for name in ("run one", "red/anchored", "run two", "moe"))
    colours = line_colours(lines)
    assert (colours["red/anchored"], colours["moe"]) == (colour_of("red"), colour_of("moe"))
    assert len(set(colours.values())) == 4


def test_lines_are_named_beside_them_and_dots_in_a_legend() -> None:
    assert [label for label, *_ in legend_of(DOTS)] == ["RED", "MoE"]
    assert legend_of(KINDS["curves"]) == []
    many = tuple(Line(str(number), (0, 1), (0, number)) for number in range(9))
    assert len(legend_of(Panel("", "x", "y", many))) == 9


def test_labels_do_not_overlap() -> None:
    for heights in ([0.0] * 5, [1.0] * 5, [0.1, 0.11, 0.5, 0.51, 0.52]):
        moved = spread(heights, 0.1)
        gaps = [after - before for before, after in itertools.pairwise(moved)]
        assert min(gaps) > 0.09
        assert min(moved) > -1e-6
        assert max(moved) < 1 + 1e-6
