"""Certificates for outputs of any model: the figures are those of the functions that runs use, and the risk is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.parts import draw_parts, write_parts
from redx.composition.evaluation import certify, evaluate
from redx.composition.files import certify_parts
from redx.composition.risk import harm_thresholds, risk_cutoff
from redx.composition.rules import get_rule
from redx.config import BankId
from redx.errors import RedxError


@pytest.mark.parametrize("rule", ["base", "red", "fixed", "sum", "red-oracle", "moe", "uniform", "oracle"])
def test_figures_are_those_of_a_run(rule: str) -> None:
    parts = draw_parts(80, 3, 4)
    report = certify_parts(parts, rule, kinds=["swap", "drop"], levels=[0, 0.5, 1], seed=3)
    certified = certify(get_rule(rule), parts)
    assert torch.equal(report.radius, certified.radius)
    assert torch.equal(report.predicted, certified.predicted)
    bank = {BankId(get_rule(rule).form, "plain"): parts}
    rows = evaluate(
        bank, task="t", seed=3, domains=("0", "1", "2"), rules=[rule], kinds=["swap", "drop"], levels=[0, 0.5, 1]
    )
    values = {(row["metric"], row["noise"], row["level"], row["domain"]): row["value"] for row in rows}
    figures = report.figures
    assert figures["accuracy"]["mean"] == values["accuracy", "none", 0, "all"]
    assert {f"certified@{e}": value for e, value in figures["certified"].items()} == {
        metric: value for (metric, *_), value in values.items() if metric.startswith("certified@")
    }
    for kind, curve in figures["noise"].items():
        assert curve == {f"{level:g}": values["accuracy", kind, level, "all"] for level in (0, 0.5, 1)}
    for name, share in figures["per_domain"].items():
        assert share == pytest.approx(values["accuracy", "none", 0, name])


def test_a_file_and_its_parts_give_the_same(tmp_path: Path) -> None:
    parts = draw_parts(60, 3, 4)
    path = write_parts(tmp_path / "outputs.npz", parts)
    assert certify_parts(path, risk=0.1).figures == certify_parts(parts, risk=0.1).figures


@pytest.mark.parametrize("rule", ["red", "sum"])
def test_the_cutoff_comes_from_the_calibration_examples_alone(rule: str) -> None:
    parts, held = draw_parts(300, 3, 4, seed=1), draw_parts(99, 3, 4, seed=2)
    parts, held = (replace(one, confidences=one.gates) for one in (parts, held))
    report = certify_parts(parts, rule, risk=0.05, calibration=held)
    promise = report.figures["risk"]
    assert promise["cutoff"] == risk_cutoff(harm_thresholds(get_rule(rule), held), 0.05)
    assert (promise["calibration"], promise["divided"], promise["score"]) == (99, None, "as given")
    shuffled = parts.only(torch.randperm(300, generator=torch.Generator().manual_seed(0)))
    assert certify_parts(shuffled, rule, risk=0.05, calibration=held).figures["risk"]["cutoff"] == promise["cutoff"]
    assert promise["after"]["harm"] < promise["before"]["harm"]
    assert promise["after"]["worst"] == report.figures["certified"]["1"]


def test_the_mean_harm_over_divisions_is_at_most_the_risk() -> None:
    """The promise itself: the mean over many divisions of rows into calibration and test examples."""
    parts = draw_parts(400, 3, 4, dtype=torch.float32)
    parts = replace(parts, labels=torch.where(torch.arange(400) % 2 == 0, parts.base.argmax(-1), parts.true_labels()))
    settings = {"kinds": [], "epsilons": [1.0], "risk": 0.05}
    harms = [certify_parts(parts, seed=seed, **settings).figures["risk"] for seed in range(60)]
    mean = sum(promise["after"]["harm"] for promise in harms) / len(harms)
    assert 0.03 < mean <= 0.055  # at most the risk, up to chance, and not far below it
    assert all(promise["before"]["harm"] > 0.2 for promise in harms)


def test_rows_are_divided_by_seed_and_share() -> None:
    parts = draw_parts(100, 3, 4)
    first, again, other = (certify_parts(parts, risk=0.1, share=0.3, seed=seed, kinds=[]) for seed in (0, 0, 1))
    assert len(first.rows) == 70
    assert first.figures["risk"]["calibration"] == 30
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert first.figures["risk"]["divided"] == {"share": 0.3, "seed": 0}


def test_computed_confidences_do_not_depend_on_the_router() -> None:
    parts = draw_parts(100, 3, 4)
    other = replace(parts, gates=parts.gates.flip(1) * 3)
    cutoffs = [certify_parts(one, risk=0.1, kinds=[]).figures["risk"]["cutoff"] for one in (parts, other)]
    assert cutoffs[0] == cutoffs[1]


def test_a_vocabulary_of_many_classes_needs_no_table_of_classes_by_classes() -> None:
    parts = draw_parts(3, 2, 50_000, dtype=torch.float32)
    assert certify_parts(parts, kinds=["swap"], levels=[1]).figures["outputs"] == 50_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "nothing"}, "There is no rule"),
        ({"rule": "global"}, "reads one head of its own"),
        ({"rule": "moe", "risk": 0.1}, "adds no residuals to the base"),
        ({"risk": 2.0}, "between 0 and 1"),
        ({"risk": 0.001}, "cannot be promised with 20 calibration examples"),
        ({"risk": 0.1, "confidence": 1.5}, "between 0 and 1"),
        ({"risk": 0.1, "share": 1.0}, "leaves no calibration or no test"),
        ({"risk": 0.1, "share": float("nan")}, "leaves no calibration or no test"),
        ({"risk": 0.1, "score": "ownership"}, "choose one of gain, answer"),
        ({"risk": 0.1, "calibration": draw_parts(40, 2, 4)}, "other experts or classes"),
        (
            {"risk": 0.1, "calibration": replace(draw_parts(40, 3, 4), confidences=torch.zeros(40, 3))},
            "for both or for neither",
        ),
        ({"confidence": 0.9}, "need a risk"),
        ({"epsilons": [1.5]}, "between 0 and 1"),
        ({"kinds": ["storm"]}, "There is no noise"),
        ({"levels": [float("nan")]}, "between 0 and 1"),
    ],
)
def test_mistakes_get_one_sentence(settings: dict, words: str) -> None:
    with pytest.raises(RedxError, match=words):
        certify_parts(draw_parts(40, 3, 4), **settings)
