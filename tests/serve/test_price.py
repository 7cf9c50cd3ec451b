"""The price of safety: the figures at any risk are those of a calibration at that risk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from redx.composition.evaluation import certify, worst_harm
from redx.composition.parts import Parts
from redx.composition.risk import RiskControl, harm_figures
from redx.composition.rules import get_rule
from redx.serve.price import price_of_safety

REGIONS = {"red": "simplex", "sum": "box", "fixed": "simplex"}


def draw_parts(examples: int, seed: int, experts: int = 4, classes: int = 5) -> Parts:
    """Return random parts in which many examples can be harmed; some confidences are equal."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (examples,), generator=draw)
    base = torch.randn(examples, classes, generator=draw) + 2 * torch.nn.functional.one_hot(labels, classes)
    residuals = 1.5 * torch.randn(examples, experts, classes, generator=draw)
    gates = torch.randn(examples, experts, generator=draw)
    confidences = (4 * torch.randn(examples, experts, generator=draw)).round() / 4
    return Parts(base, residuals, gates, labels, labels % experts, confidences)


def figures_at(rule_name: str, parts: Parts, calibration: RiskControl) -> dict[str, float]:
    """Return the figures that the evaluation of a run gives."""
    rule, shown = get_rule(rule_name), replace(parts, cutoffs=calibration.cutoffs)
    certified = certify(rule, shown)
    right = certified.predicted == parts.labels
    return {
        "clean": float(right.double().mean()),
        "worst": float((right & (certified.radius >= 1)).double().mean()),
        "harm": float(worst_harm(shown, certified).double().mean()),
    }


@pytest.mark.parametrize("rule", REGIONS)
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_every_risk_leads_to_the_figures_of_its_cutoff(rule: str, confidence: float | None) -> None:
    test, held = draw_parts(300, 0), draw_parts(200, 1)
    calibration = RiskControl(0.1, confidence).calibrate(held)
    price = price_of_safety(get_rule(rule), test, calibration)
    rows = price["rows"]
    assert [row["risk"] for row in rows] == sorted(row["risk"] for row in rows)
    for risk in (0, 0.012, 0.02, 0.05, 0.1, 0.2, 0.5, 0.99, 1):
        if 0 < risk < rows[1]["risk"]:
            continue  # too few calibration examples: a calibration refuses it
        row = [row for row in rows if row["risk"] <= risk + 1e-12][-1]
        at = calibration.at(risk, confidence)
        cutoff = getattr(at.cutoffs, REGIONS[rule])
        assert row["cutoff"] == (cutoff if abs(cutoff) != float("inf") else None)
        expected = figures_at(rule, test, at)
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-12)
        told = harm_figures(rule, replace(test, cutoffs=at.cutoffs))  # what the study of risk reports
        assert {name: row[name] for name in expected} == pytest.approx({name: told[name] for name in expected})


def test_without_any_risk_the_base_answers() -> None:
    test = draw_parts(100, 2)
    price = price_of_safety(get_rule("red"), test, RiskControl(0.1).calibrate(draw_parts(50, 3)))
    first = price["rows"][0]
    assert (first["clean"], first["worst"], first["harm"]) == (price["base"], price["base"], 0)
