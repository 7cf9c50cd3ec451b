"""Comparisons on the same examples agree with brute force and with scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from scipy import stats

from helpers.parts import draw_parts
from redx.composition.comparison import (
    compare_rules,
    correct_answers,
    difference_over_seeds,
    grow_and_shrink,
    mean_contributions,
    paired_difference,
)
from redx.composition.evaluation import predict
from redx.composition.parts import Cutoffs
from redx.composition.rules import get_rule
from redx.config import BankId

RED = get_rule("red")
MAIN = {"residual": "plain", "standalone": "plain"}


def test_one_answer_per_example_gives_mcnemars_exact_test() -> None:
    first = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    second = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 1, 1], dtype=torch.bool)
    result = paired_difference(difference_over_seeds([(first, second)], shared=True))
    assert (result["better"], result["worse"]) == (5, 1)
    assert result["p"] == pytest.approx(stats.binomtest(5, 6).pvalue)
    assert result["difference"] == pytest.approx(0.4)


def test_the_interval_is_that_of_a_bootstrap_over_examples() -> None:
    values = numpy.random.default_rng(0).choice([-1.0, 0.0, 1.0], 300, p=[0.1, 0.6, 0.3])
    ours = paired_difference(torch.from_numpy(values))
    theirs = stats.bootstrap((values,), numpy.mean, method="percentile", rng=1, n_resamples=5000).confidence_interval
    assert ours["low"] == pytest.approx(theirs.low, abs=0.01)
    assert ours["high"] == pytest.approx(theirs.high, abs=0.01)
    assert paired_difference(torch.from_numpy(values)) == ours


def test_answers_that_never_differ_are_no_evidence() -> None:
    result = paired_difference(torch.zeros(20))
    assert result == {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0, "better": 0, "worse": 0}


def test_seeds_on_the_same_examples_are_averaged_and_others_joined() -> None:
    pairs = [(torch.ones(4), torch.zeros(4)), (torch.zeros(4), torch.zeros(4))]
    assert difference_over_seeds(pairs, shared=True).tolist() == [0.5] * 4
    assert difference_over_seeds(pairs, shared=False).tolist() == [1.0] * 4 + [0.0] * 4


def test_every_rule_and_bank_is_compared_with_the_reference() -> None:
    banks = {BankId("residual", "plain"): draw_parts(), BankId("residual", "other"): draw_parts(seed=1)}
    answers = correct_answers(banks, MAIN)
    assert torch.equal(answers["red"], answers["red/plain"])
    rules = compare_rules([banks], MAIN, "red", shared=True)
    assert "red" not in rules
    assert rules["red/plain"]["difference"] == 0
    gap = answers["red"].double().mean() - answers["base"].double().mean()
    assert rules["base"]["difference"] == pytest.approx(float(gap))
    assert compare_rules([banks], MAIN, "moe", shared=True) == {}


def test_contributions_are_means_over_a_domain_and_know_no_constant() -> None:
    parts = draw_parts(experts=3)
    added = mean_contributions(RED, parts, 4)
    weights = RED.weights(parts)
    for domain in range(3):
        rows = (parts.domains == domain).nonzero()[:, 0].tolist()
        labels = parts.true_labels()
        wanted = [
            [
                float(weights[row, k] * (parts.residuals[row, k, labels[row]] - parts.residuals[row, k].mean()))
                for k in range(3)
            ]
            for row in rows
        ]
        assert torch.allclose(added[domain], torch.tensor(wanted, dtype=torch.float64).mean(0))
    assert bool(added[3].isnan().all())  # no example has this domain
    shifted = replace(parts, residuals=parts.residuals + 7.0)
    assert torch.allclose(mean_contributions(RED, shifted, 4)[:3], added[:3])


def test_a_silent_expert_contributes_nothing() -> None:
    parts = replace(draw_parts(experts=3), confidences=torch.zeros(64, 3), cutoffs=Cutoffs(1.0, 1.0))
    assert float(mean_contributions(RED, parts, 3).abs().max()) == 0


def test_growing_begins_with_the_base_and_ends_with_all() -> None:
    parts = draw_parts()
    changes = grow_and_shrink(RED, parts)
    base, red = (
        float((predict(rule, parts, rule.weights(parts)) == parts.labels).double().mean())
        for rule in (get_rule("base"), RED)
    )
    assert changes["one_by_one"][0] == base
    assert changes["one_by_one"][-1] == red
    assert len(changes["one_by_one"]) == 6
    for k, figures in enumerate(changes["without"]):
        kept = parts.keep([expert for expert in range(5) if expert != k])
        answers = predict(RED, kept, RED.weights(kept))
        assert figures["accuracy"] == float((answers == parts.labels).double().mean())
        assert figures["accuracy"] - red == pytest.approx((figures["gained"] - figures["lost"]) / len(parts))
        assert figures["flips"] >= figures["gained"] + figures["lost"]
