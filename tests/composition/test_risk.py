"""Risk control: thresholds by brute force, monotone harm, and the promise over many draws of the calibration set."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.parts import draw_parts as draw
from redx.composition.evaluation import certify
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.risk import allowed_harm, harm_thresholds, risk_cutoff, smallest_risk
from redx.composition.rules import get_rule
from redx.errors import RedxError
from redx.seeding import generator

RULES = ("red", "sum")


def confidences_of(parts: Parts, seed: int = 0, whole: bool = False) -> Tensor:
    values = torch.randn(parts.gates.shape, generator=generator(seed, "confidences"), dtype=parts.gates.dtype)
    return values.round() if whole else values


def harm(name: str, parts: Parts, confidences: Tensor, cutoff: float) -> Tensor:
    """Return harm by definition: the base is right, and the base's answer is not certified at ε = 1."""
    rule, cut = get_rule(name), replace(parts, confidences=confidences, cutoffs=Cutoffs(cutoff, cutoff))
    certified = certify(rule, cut, torch.zeros_like(cut.gates))  # the router that asks nobody answers as the base does
    right = predicted_classes(cut.base) == cut.labels
    return right & ((certified.radius < 1) | (certified.predicted != cut.labels))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_thresholds_are_those_of_brute_force(name: str, classes: int, whole: bool) -> None:
    parts = draw(examples=200, experts=4, classes=classes, seed=3)
    if whole:  # many exact ties
        parts = Parts(parts.base.round(), parts.residuals.round(), parts.gates, parts.labels, parts.domains)
    confidences = confidences_of(parts, whole=whole)
    thresholds = harm_thresholds(get_rule(name), replace(parts, confidences=confidences))
    assert bool(thresholds.isfinite().any())
    cuts = sorted({-math.inf, *confidences.flatten().tolist()[:60], *thresholds[thresholds.isfinite()].tolist()[:60]})
    for cutoff in cuts:
        assert torch.equal(harm(name, parts, confidences, cutoff), thresholds > cutoff), cutoff


@pytest.mark.parametrize("name", RULES)
def test_harm_never_rises_with_the_cutoff(name: str) -> None:
    parts = draw(examples=300, experts=5, classes=4, seed=5)
    confidences = confidences_of(parts)
    before = torch.ones(300, dtype=torch.bool)
    for cutoff in torch.linspace(-3, 3, 25).tolist():
        now = harm(name, parts, confidences, cutoff)
        assert not bool((now & ~before).any())
        before = now


@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize("risk", [0.0, 0.013, 0.05, 0.3, 1.0])
def test_the_cutoff_is_the_smallest_that_keeps_the_risk(risk: float, confidence: float | None) -> None:
    thresholds = torch.randn(300, generator=generator(1, "thresholds"), dtype=torch.float64).round(decimals=1)
    thresholds[:40] = -math.inf
    allowed = allowed_harm(300, risk, confidence)
    cutoff = risk_cutoff(thresholds, risk, confidence)
    if allowed < 0:
        assert cutoff == math.inf
        return
    assert int((thresholds > cutoff).sum()) <= allowed
    lower = [value for value in {-math.inf, *thresholds.tolist()} if value < cutoff]
    assert all(int((thresholds > value).sum()) > allowed for value in lower)


def test_the_expected_harm_stays_below_the_risk_over_many_draws() -> None:
    source = generator(0, "population")
    population = torch.randn(20_000, generator=source).clamp_min(-0.5)  # a third of the examples cannot be harmed more
    for risk, count in ((0.05, 200), (0.2, 40), (0.02, 99)):
        harms = []
        for _ in range(2_000):
            calibration = population[torch.randint(len(population), (count,), generator=source)]
            harms.append(float((population > risk_cutoff(calibration, risk)).double().mean()))
        assert sum(harms) / len(harms) <= risk * 1.02  # sampling error of 2,000 draws


def test_the_harm_stays_below_the_risk_with_the_promised_probability() -> None:
    source = generator(0, "population")
    population = torch.randn(50_000, generator=source)
    for risk, count, confidence in ((0.05, 300, 0.9), (0.1, 100, 0.95)):
        violations = 0
        for _ in range(2_000):
            calibration = population[torch.randint(len(population), (count,), generator=source)]
            violations += float((population > risk_cutoff(calibration, risk, confidence)).double().mean()) > risk
        assert violations / 2_000 <= (1 - confidence) * 1.2


@pytest.mark.parametrize("confidence", [None, 0.95])
def test_the_smallest_supported_risk_is_supported_and_none_below(confidence: float | None) -> None:
    for count in (1, 19, 99, 1000):
        risk = smallest_risk(count, confidence)
        assert allowed_harm(count, risk + 1e-12, confidence) >= 0
        assert allowed_harm(count, risk * (1 - 1e-6), confidence) == -1


def test_edges() -> None:
    rule = get_rule("red")
    one = draw(examples=20, experts=1, classes=3)
    assert len(harm_thresholds(rule, replace(one, confidences=confidences_of(one)))) == 20
    empty = draw(examples=0, experts=2, classes=3)
    assert len(harm_thresholds(rule, replace(empty, confidences=empty.gates))) == 0
    assert risk_cutoff(torch.empty(0), 0.5) == math.inf
    assert risk_cutoff(torch.empty(0), 1.0) == -math.inf
    parts = draw(examples=50, experts=3, classes=3)
    everywhere = torch.full_like(parts.gates, math.inf)
    assert set(harm_thresholds(rule, replace(parts, confidences=everywhere)).tolist()) <= {math.inf, -math.inf}
    silent = replace(parts, confidences=-everywhere)
    assert torch.equal(harm_thresholds(rule, silent), torch.full((50,), -math.inf, dtype=torch.float64))
    unknown = replace(parts, labels=torch.full_like(parts.true_labels(), 99), confidences=parts.gates)
    assert torch.equal(harm_thresholds(rule, unknown), torch.full((50,), -math.inf, dtype=torch.float64))
    with pytest.raises(RedxError, match="adds no residuals"):
        harm_thresholds(get_rule("moe"), replace(parts, confidences=parts.gates))
    with pytest.raises(RedxError, match="hold no confidences"):
        harm_thresholds(rule, parts)
    with pytest.raises(RedxError, match="between 0 and 1"):
        risk_cutoff(torch.zeros(3), 1.5)
    with pytest.raises(RedxError, match="between 0 and 1"):
        risk_cutoff(torch.zeros(3), 0.5, confidence=1.0)
