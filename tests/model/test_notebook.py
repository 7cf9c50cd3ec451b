"""What notebooks show: escaped tables with bars, and the public names."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import redx
from helpers.own_data import draw_clouds
from redx.model.answers import SHOWN, Answers
from redx.report.notebook import model_html, run_html


class Checker(HTMLParser):
    """Collects text, and checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def check(html: str) -> str:
    """Return the text of a piece of HTML, which holds only tables and bars."""
    checker = Checker()
    checker.feed(html)
    assert not checker.open
    assert checker.seen <= {"p", "b", "a", "table", "tr", "td", "th", "div"}
    return checker.text


def test_answers_show_a_bar_for_the_base_and_every_expert(clouds: redx.Run) -> None:
    model = clouds.load()
    answers = model.explain(draw_clouds(count=30)["x"])
    html = answers[0]._repr_html_()
    assert html.count("<div") == 1 + len(model.experts)
    assert all(name in check(html) for name in ("base", "certified radius", *model.experts.names))
    assert f"and {30 - SHOWN} more answers" in check(answers._repr_html_())
    assert answers == list(answers)


def test_names_of_others_are_escaped(clouds: redx.Run) -> None:
    evil = "<script>alert(1)</script>\x1b"
    answer = clouds.load().explain(draw_clouds(count=1)["x"])[0]
    name = answer.expert or ""
    parts = {name: 1.0, evil: -0.5}
    html = Answers([dataclasses.replace(answer, answer=evil, weights=parts, contributions=parts)])._repr_html_()
    html += model_html({"rule": evil}, [evil], evil)
    html += run_html({**clouds.summary, "task": evil}, evil, "'><script>")
    assert "<script" not in html
    assert "\x1b" not in html
    assert "<script>alert(1)</script>\\x1b" in check(html)


def test_models_and_runs_show_what_they_are(clouds: redx.Run) -> None:
    text = check(clouds.load()._repr_html_())
    assert all(word in text for word in ("redx.Model", "4 experts", "risk", "red"))
    assert "any router" in check(clouds._repr_html_())
    assert "redx.Model" in check(redx.Model()._repr_html_())


def test_the_package_lists_its_public_names() -> None:
    assert set(dir(redx)) == {*redx.__all__, "__version__"}
