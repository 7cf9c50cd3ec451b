"""A run folder of schema 1, written by an earlier version, gives the same answers and works with the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.commands import Ask, succeeded
from redx.runs.folder import read_config
from redx.runs.parts import read_parts

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "run-schema-1-expected.json").read_text())  # by the earlier version


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run: three domains, four features, owned experts; its data file is not part of it."""
    return Path(shutil.copytree(FIXTURES / "run-schema-1", tmp_path / "run"))


@pytest.mark.parametrize("case", EXPECTED["rules"])
def test_answers_weights_and_radii_are_the_same(run: Path, case: str) -> None:
    rule, router = case.split(" by ")
    expected = EXPECTED["rules"][case]
    model = redx.load(run)
    with model.using(rule, router=router):
        explanations = model.explain(EXPECTED["inputs"])
        assert model.predict(EXPECTED["inputs"]) == expected["answers"]
    assert [explanation.answer for explanation in explanations] == expected["answers"]
    assert [explanation.expert for explanation in explanations] == expected["experts"]
    for explanation, radius in zip(explanations, expected["radii"], strict=True):
        assert radius - 1e-4 < explanation.radius < radius + 1e-6  # the present one also covers rounding errors
    for explanation, weights in zip(explanations, expected["weights"], strict=True):
        assert list(explanation.weights.values()) == pytest.approx(weights, abs=1e-5)


def test_the_cases_tell_rules_and_examples_apart() -> None:
    radii = [radius for case in EXPECTED["rules"].values() for radius in case["radii"]]
    assert 0.1 < sum(radius < 1 for radius in radii) / len(radii) < 0.9
    answers = {tuple(case["answers"]) for case in EXPECTED["rules"].values()}
    assert len(answers) >= 3
    assert all(len(set(case)) > 1 for case in answers)


def test_settings_and_parts_are_read(run: Path) -> None:
    config = read_config(run)
    assert (config.task, config.preset, config.seeds) == ("features", "quick", (0,))
    assert set(read_parts(run, 0).banks) >= set(config.banks)


def test_the_run_is_evaluated_and_certified(run: Path, ask: Ask) -> None:
    rules = json.loads(succeeded(ask("evaluate", run, "--json")))["rules"]
    assert set(rules) == set(EXPECTED["certified"])
    for rule, expected in EXPECTED["certified"].items():
        shares = [rules[rule]["certified"][epsilon] for epsilon in expected]
        assert shares == pytest.approx(list(expected.values())), rule
    for rule in ("base", "red", "moe"):
        certified = json.loads(succeeded(ask("certify", run, "--rule", rule, "--json")))["certified"]
        assert [certified[epsilon] for epsilon in expected] == pytest.approx([*EXPECTED["certified"][rule].values()])


def test_the_experts_of_the_run_are_listed(run: Path, ask: Ask) -> None:
    listed = json.loads(succeeded(ask("experts", "list", run, "--json")))
    assert [expert["domain"] for expert in listed] == ["east", "north", "south"]
    assert "north" in succeeded(ask("experts", "list", run))
