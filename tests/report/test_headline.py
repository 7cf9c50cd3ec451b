"""The headline of the report states gain and loss, and promises kept and broken, alike."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.reports import make_config
from redx.cli.common import show_brief
from redx.composition.rules import RULES
from redx.report.document import RunFigures
from redx.report.headline import four_figures, verdict


def entry(mean: float, **more: Any) -> dict[str, Any]:
    return {"accuracy": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}, **more}


@pytest.mark.parametrize(("worst", "words"), [(0.7, "0.1000 less than the base"), (0.8, "no less than the base")])
def test_the_verdict_states_a_loss_as_it_states_a_gain(worst: float, words: str) -> None:
    red = entry(0.75, certified={"1": worst}, noise={"swap": {"1": 0.72}})
    told = verdict({"rules": {"base": entry(0.8), "red": red, "global": entry(0.755)}})
    assert words in told
    assert "RED answers 0.7500" in told
    assert "(base 0.8000)" in told
    assert "One model on all data pooled answers 0.7550." in told


def test_the_verdict_says_whether_the_experts_own_data_bring_anything() -> None:
    rules = {"base": entry(0.8), "red": entry(0.85), "red/shared-only": entry(0.82), "global": entry(0.9)}
    pair = {"low": 0.01, "high": 0.05, "p": 0.001}
    pairs = {"red/shared-only": pair | {"difference": 0.03}, "global": pair | {"difference": -0.05}}
    told = verdict({"rules": rules, "paired": {"reference": "red", "rules": pairs}})
    assert "trained on the shared examples alone answer 0.8200: the experts' own data bring 0.0300" in told
    assert "0.0500 more: if you may pool the data, pool them." in told
    for weak in ({"difference": 0.03, "p": 0.2}, {"difference": -0.03}, {"difference": 0.0, "p": 1.0}):
        pairs = {"red/shared-only": pair | weak, "global": pair | {"difference": 0.02}}
        told = verdict({"rules": rules, "paired": {"reference": "red", "rules": pairs}})
        assert "the experts' own data bring nothing here" in told


def test_the_verdict_tells_the_promise_with_its_interval_and_names_the_quarantine() -> None:
    harm = {"mean": 0.012, "low": 0.008, "high": 0.02}
    risk = {"risk": 0.01, "confidence": None, "by": "domain", "harm": harm}
    rules = {"base": entry(0.8), "red": entry(0.85, certified={"1": 0.79}, risk=risk)}
    out = [{"expert": name, "seed": 0, "quarantined": name != "c"} for name in "abc"]
    told = verdict({"rules": rules, "quarantine": out})
    assert "0.0120 of the test examples are harmed (95 %: 0.0080 to 0.0200)" in told
    assert "at most 0.01 is promised in every domain, on average: within sampling error." in told
    assert "`a` and `b` are in quarantine" in told
    shared = risk | {"domains": {"a": {"together": ["b"]}, "b": {"together": ["a"]}, "c": {"together": []}}}
    rules["red"] = entry(0.85, certified={"1": 0.79}, risk=shared)
    assert "in every domain, or in those that share a cut-off together" in verdict({"rules": rules})
    routing = risk | {"budget": "routing", "routing_harm": {"mean": 0.001, "low": 0.0, "high": 0.002}}
    rules["red"] = entry(0.85, certified={"1": 0.79}, risk=routing)
    assert "Routers alone harm 0.0010 of the test examples" in verdict({"rules": rules})


def test_the_words_of_a_rule_are_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(RULES["moe"], "phrase", "the committee", raising=False)
    rules = {"base": entry(0.8, certified={"1": 0.8}), "moe": entry(0.75, certified={"1": 0.1})}
    assert verdict({"rules": rules}).startswith("The committee answers 0.7500")
    show_brief({"task": "toy", "seeds": [0], "rules": rules})
    out = capsys.readouterr().out
    assert "the committee, under any router" in out


@pytest.mark.parametrize(
    ("harm", "low", "state", "word"),
    [(0.009, 0.005, "good", "kept"), (0.012, 0.008, "good", "sampling error"), (0.03, 0.02, "bad", "broken")],
)
def test_a_broken_promise_is_told(harm: float, low: float, state: str, word: str) -> None:
    risk = {"risk": 0.01, "confidence": None, "harm": {"mean": harm, "low": low, "high": 0.05}}
    red = entry(0.9, certified={"1": 0.8}, noise={"swap": {"1": 0.85}}, risk=risk)
    tiles = four_figures(RunFigures("run", make_config(), {"rules": {"base": entry(0.8), "red": red}}))
    assert [tile.values[0][1] for tile in tiles] == ["0.9000", "0.8500", "0.8000", f"{harm:.4f}"]
    assert tiles[3].state == state
    assert "≤ 0.01" in tiles[3].note
    assert word in tiles[3].note


def test_a_run_without_a_promise_promises_nothing() -> None:
    (*_, tile) = four_figures(RunFigures("run", make_config(), {"rules": {"base": entry(0.8), "red": entry(0.9)}}))
    assert (tile.values, tile.state) == ((("", "—"),), "")
    assert "no promise" in tile.note


def priced(clean: float, budget: str = "harm", **price: Any) -> str:
    known = {"uncut": 0.99, "risks": {"0.02": 0.95, "0.05": 0.985}, "routing": 0.99} | price
    harm = {"mean": 0.0, "low": 0.0, "high": 0.01}
    risk = {"risk": 0.01, "confidence": None, "budget": budget, "harm": harm, "routing_harm": harm}
    red = entry(clean, certified={"1": 0.8}, noise={"swap": {"1": 0.85}}, risk=risk | {"price": known})
    return verdict({"rules": {"base": entry(0.8), "red": red}})


def test_the_verdict_names_what_keeps_the_accuracy_where_the_cutoffs_are_expensive() -> None:
    assert "The cut-offs cost 0.0700: risk 0.05 would leave 0.9850, the budget routing at risk 0.01 0.9900" in priced(
        0.92
    )
    assert "cut-offs cost" not in priced(0.985)
    assert "would leave" not in priced(0.92, risks={"0.02": 0.93})
    assert "budget routing" not in priced(0.92, routing=None)


def test_the_promise_of_a_budget_is_told_as_what_it_is() -> None:
    assert "Routers alone harm 0.0000 of the test examples" in priced(0.98, "routing")
    assert "At worst 0.0000 of the test examples are harmed" in priced(0.98)
    routing = {"mean": 0.002, "low": 0.0, "high": 0.01}
    risk = {"risk": 0.01, "confidence": None, "budget": "routing", "routing_harm": routing}
    red = entry(0.9, risk=risk | {"harm": {"mean": 0.05, "low": 0.04, "high": 0.06}})
    (*_, tile) = four_figures(RunFigures("run", make_config(), {"rules": {"base": entry(0.8), "red": red}}))
    assert (tile.values[0][1], tile.state) == ("0.0020", "good")
