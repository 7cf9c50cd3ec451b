"""Quarantine, the two budgets, and silence outside an expert's own classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from redx.composition.confidence import confidences
from redx.composition.parts import Parts, predicted_classes
from redx.composition.quarantine import LEVEL, try_experts
from redx.composition.risk import RiskControl, harm_figures, harm_outcomes, harm_thresholds, own_mistakes, risk_cutoff
from redx.composition.rules import get_rule
from redx.errors import RedxError

RED = get_rule("red")
CLASSES, RUNS = 12, 2000


def draw_parts(examples: int, experts: int, seed: int, bad: int | None = None) -> Parts:
    """Return examples of CLASSES classes whose experts are right in their own domain; one of them may be bad."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (examples,), generator=draw)
    domains = labels * experts // CLASSES
    base = torch.randn(examples, CLASSES, generator=draw)
    base[torch.arange(examples), labels] += 2.5
    residuals = torch.randn(examples, experts, CLASSES, generator=draw)
    own = torch.arange(examples), domains, labels
    residuals[own] += 1.5
    ownership = torch.randn(examples, experts, generator=draw)
    ownership[torch.arange(examples), domains] += 3
    if bad is not None:
        residuals[:, bad] = 4 * torch.randn(examples, CLASSES, generator=draw)
        ownership[:, bad] = 9
    return Parts(base, residuals, ownership, labels, domains)


def scored(parts: Parts, quarantined: Tensor | None = None) -> Parts:
    """Return the record with the default confidences."""
    sure = confidences("contest", parts.base, parts.residuals, parts.gates, None, None, quarantined)
    return parts.with_confidences(sure, None)


def test_a_harmful_expert_is_found_and_the_others_are_not() -> None:
    parts = draw_parts(400, 6, seed=1, bad=2)
    trials = try_experts(lambda out: scored(parts, out), 6, 0.05)
    assert [trial.quarantined for trial in trials] == [False, False, True, False, False, False]
    assert trials[2].harmed > trials[2].helped
    assert "make" in str(trials[2])


def test_two_harmful_experts_are_found() -> None:
    parts = draw_parts(400, 6, seed=2, bad=2)
    other = draw_parts(400, 6, seed=2, bad=5)
    residuals, gates = parts.residuals.clone(), parts.gates.clone()
    residuals[:, 5], gates[:, 5] = other.residuals[:, 5], other.gates[:, 5]
    both = replace(parts, residuals=residuals, gates=gates)
    trials = try_experts(lambda out: scored(both, out), 6, 0.05)
    assert [place for place, trial in enumerate(trials) if trial.quarantined] == [2, 5]


def test_an_admitted_expert_takes_part() -> None:
    parts = draw_parts(400, 6, seed=1, bad=2)
    trials = try_experts(lambda out: scored(parts, out), 6, 0.05, admitted=[2])
    assert trials[2].admitted
    assert not any(trial.quarantined for trial in trials)


def test_experts_of_no_consequence_are_rarely_put_in_quarantine() -> None:
    found = 0
    for seed in range(60):
        parts = draw_parts(200, 4, seed)
        right = predicted_classes(parts.base) == parts.labels
        flip = torch.rand(200, 4, generator=torch.Generator().manual_seed(seed)) < 0.3
        residuals = torch.zeros_like(parts.residuals)
        other = (parts.true_labels() + 1) % CLASSES
        target = torch.where(right, other, parts.true_labels())  # what an expert that changes the answer says
        residuals[torch.arange(200), :, target] = 20.0 * flip
        even = torch.rand(200, generator=torch.Generator().manual_seed(seed + 1)) < (~right).float().mean() * 2
        keep = ~right | (even & right)  # as many examples to help as to harm, nearly
        chosen = replace(parts, residuals=residuals).only(keep.nonzero()[:, 0])
        trials = try_experts(lambda out, chosen=chosen: scored(chosen, out), 4, 0.1)
        found += any(trial.quarantined for trial in trials)
    assert found <= 3  # at most LEVEL of 60, and what chance adds
    assert LEVEL == 0.01


@pytest.mark.parametrize("score", ["contest", "all", "gain", "ownership"])
def test_quarantine_equals_removal(score: str) -> None:
    parts = draw_parts(50, 5, seed=3)
    out = torch.tensor([False, True, False, False, False])
    sure = confidences(score, parts.base, parts.residuals, parts.gates, None, None, out)
    kept = [0, 2, 3, 4]
    without = confidences(score, parts.base, parts.residuals[:, kept], parts.gates[:, kept])
    assert bool((sure[:, 1] == -torch.inf).all())
    assert torch.allclose(sure[:, kept], without, atol=1e-5)


def test_all_in_quarantine_leaves_the_base() -> None:
    parts = scored(draw_parts(100, 3, seed=4), torch.ones(3, dtype=torch.bool))
    control = RiskControl(0.1).calibrate(parts)
    outcomes = harm_outcomes(RED, control.apply(parts))
    assert torch.equal(outcomes[:, 0], outcomes[:, 1])
    assert not bool(outcomes[:, 3].any())


def test_an_expert_is_silent_where_its_answer_is_not_its_own() -> None:
    parts = draw_parts(200, 4, seed=5)
    own = torch.arange(CLASSES)[None] * 4 // CLASSES == torch.arange(4)[:, None]
    sure = confidences("contest", parts.base, parts.residuals, parts.gates, None, own)
    answers = (parts.base[:, None] + parts.residuals).argmax(-1)
    inside = own[torch.arange(4), answers]
    assert bool((sure[~inside] == -torch.inf).all())
    assert bool(sure[inside].isfinite().all())
    columns = torch.tensor([[1, 3]]).expand(200, 2)
    some = confidences("contest", parts.base, parts.residuals[:, [1, 3]], parts.gates, columns, own)
    assert torch.equal(some, sure[:, [1, 3]])


# --- budgets


def test_routing_harm_is_the_part_of_the_harm_that_is_no_own_mistake() -> None:
    parts = scored(draw_parts(500, 4, seed=6))
    figures = harm_figures("red", parts)
    mistakes = own_mistakes(parts)
    rows = torch.arange(500)
    routed = predicted_classes(parts.base + parts.residuals[rows, parts.true_domains()])
    assert torch.equal(mistakes, routed != parts.labels)
    harmed = harm_outcomes(RED, parts)[:, 3]
    assert figures["routing_harm"] == pytest.approx(float((harmed & ~mistakes).double().mean()))
    assert figures["routing_low"] <= figures["routing_harm"] <= figures["routing_high"]
    assert 0 < figures["routing_harm"] < figures["harm"]


def test_routing_harm_never_rises_with_the_cutoff() -> None:
    parts = scored(draw_parts(300, 4, seed=7))
    control = RiskControl(1.0, budget="routing").calibrate(parts)
    last = 1.0
    for risk in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        now = harm_figures("red", control.at(risk).apply(parts))["routing_harm"]
        assert now <= last
        last = now


def test_a_budget_of_routing_needs_domains() -> None:
    parts = scored(replace(draw_parts(100, 4, seed=8), domains=None))
    with pytest.raises(RedxError, match="budget='harm'"):
        RiskControl(0.1, budget="routing").calibrate(parts)
    with pytest.raises(RedxError, match="budget='harm'"):
        RiskControl(0.1).calibrate(parts).at(0.1, budget="routing")
    with pytest.raises(RedxError, match="budget"):
        RiskControl(0.1, budget="both")


def test_a_budget_of_routing_is_kept_and_silences_no_more() -> None:
    held, test = scored(draw_parts(3000, 4, seed=9)), scored(draw_parts(4000, 4, seed=10))
    harm = RiskControl(0.02).calibrate(held)
    routing = harm.at(0.02, budget="routing")
    assert routing.cutoffs.simplex <= harm.cutoffs.simplex
    figures = harm_figures("red", routing.apply(test))
    assert harm_figures("red", routing.apply(held))["routing_harm"] <= 0.02 < figures["harm"]
    assert figures["clean"] >= harm_figures("red", harm.apply(test))["clean"]
    assert routing.to_json()["budget"] == "routing"


# --- the promise, simulated


@pytest.mark.parametrize("experts", [1, 3, 12, 50])
@pytest.mark.parametrize("budget", ["harm", "routing"])
def test_the_risk_is_kept_in_every_domain_with_quarantine_in_the_loop(experts: int, budget: str) -> None:
    domains, risk, held = min(experts, 3), 0.1, 60
    pool = draw_parts(3000, experts, seed=11, bad=0 if experts > 1 else None)
    choices = draw_parts(150, experts, seed=12, bad=0 if experts > 1 else None)
    trials = try_experts(lambda out: scored(choices, out), experts, risk)
    out = torch.tensor([trial.quarantined for trial in trials])
    parts = scored(pool, out)
    class_domains = torch.arange(CLASSES) * domains // CLASSES
    every = RiskControl(risk, budget=budget).calibrate(parts, class_domains=class_domains, trials=trials)
    counted, of_example = every.counted("simplex"), class_domains[parts.true_labels()]
    draw = torch.Generator().manual_seed(13)
    harm = torch.zeros(domains, dtype=torch.double)
    for domain in range(domains):
        mine = counted[of_example == domain]
        for _ in range(RUNS):
            rows = torch.randint(len(mine), (held + 1,), generator=draw)  # exchangeable, with replacement
            harm[domain] += float(mine[rows[-1]] > risk_cutoff(mine[rows[:-1]], risk))
    assert bool((harm / RUNS <= risk + 3 * (risk * (1 - risk) / RUNS) ** 0.5).all())


def test_trials_are_kept_with_the_promise() -> None:
    parts = draw_parts(400, 6, seed=1, bad=2)
    trials = try_experts(lambda out: scored(parts, out), 6, 0.05)
    out = torch.tensor([trial.quarantined for trial in trials])
    control = RiskControl(0.05).calibrate(scored(parts, out), trials=trials)
    assert control.quarantined is not None
    assert torch.equal(control.quarantined, out)
    assert control.at(0.1).trials == tuple(trials)
    assert control.to_json()["trials"][2]["quarantined"] is True
    assert bool((harm_thresholds(RED, scored(parts, out)) < torch.inf).all())


def test_an_expert_that_claims_the_examples_of_others_is_found() -> None:
    parts = draw_parts(300, 5, seed=11)
    gates = parts.gates.clone()
    gates[:, 3] = 30.0  # it changes few answers, but nobody else wins the contest
    quiet = replace(parts, gates=gates, residuals=parts.residuals * 0.01)
    assert not any(trial.quarantined for trial in try_experts(lambda out: scored(quiet, out), 5, 0.05))
    trials = try_experts(lambda out: scored(quiet, out), 5, 0.05, claims=True)
    assert [trial.quarantined for trial in trials] == [False, False, False, True, False]
    assert trials[3].misclaimed > 200
    assert "claims" in str(trials[3])
    copied = parts.gates.clone()
    copied[:, 1] = copied[:, 2]  # the same claims as another: only the one that they belong to keeps them
    twice = replace(parts, gates=copied, residuals=parts.residuals * 0.01)
    found = try_experts(lambda out: scored(twice, out), 5, 0.05, claims=True)
    assert [trial.quarantined for trial in found] == [False, True, False, False, False]
    honest = try_experts(lambda out: scored(parts, out), 5, 0.05, claims=True)
    assert not any(trial.quarantined for trial in honest)


def test_an_expert_without_examples_of_its_own_may_claim_some() -> None:
    parts = draw_parts(300, 5, seed=12)
    others = parts.only((parts.true_domains() != 4).nonzero()[:, 0])
    trials = try_experts(lambda out: scored(others, out), 5, 0.05, claims=True)
    assert trials[4].misclaimed > trials[4].claimed == 0
    assert not trials[4].quarantined
