"""The certificate against brute force: no router within the radius changes an answer, and one just above it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from torch import Tensor

from helpers.parts import any_parts, draw_parts
from redx.composition import certificate, noise, rules
from redx.composition.evaluation import certify, predict
from redx.composition.noise import noisy_weights
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import RULES, Rule, compose
from redx.errors import RedxError
from redx.seeding import generator

SIMPLEX = [rule for rule in RULES.values() if rule.adversary == "simplex"]


POINTS = 10_000  # routers tried against each problem


ROUNDING = 1e-11  # of float64 scores


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


simplex_rules = pytest.mark.parametrize("rule", SIMPLEX, ids=lambda rule: rule.name)


def routers(experts: int, count: int = POINTS, seed: int = 0) -> Tensor:
    """All vertices, and points of the simplex: even (Dirichlet 1) and ever closer to its corners and edges."""
    drawn = torch.empty(count, experts, dtype=torch.float64).exponential_(generator=generator(seed, "routers"))
    power = torch.tensor([1.0, 1.0, 4.0, 16.0], dtype=torch.float64).repeat(count)[:count, None]
    drawn = drawn**power
    return torch.cat([torch.eye(experts, dtype=torch.float64), drawn / drawn.sum(-1, keepdim=True)])


def moved(parts: Parts, rule: Rule, radius: Tensor, others: Tensor) -> Tensor:
    """Weights of every example moved by its radius towards each of the other routers: (N, P, K)."""
    share = radius.view(-1, 1, 1)
    return (1 - share) * rule.weights(parts)[:, None] + share * others


def scores_of(parts: Parts, rule: Rule, weights: Tensor) -> Tensor:
    """The composed scores by definition, for many weights an example: (N, P, K) to (N, P, C)."""
    mixed = weights @ rule.read(parts.residuals)
    return mixed + parts.base[:, None] if rule.keeps_base else mixed


def loss_of_lead(scores: Tensor, predicted: Tensor) -> Tensor:
    """By how much any score exceeds that of the predicted class, 0 if none does: (N, P, C) to (N,)."""
    own = scores.gather(-1, predicted.view(-1, 1, 1).expand(*scores.shape[:2], 1))
    return (scores.amax(-1, keepdim=True) - own).amax((1, 2))


def just_above(radius: Tensor) -> Tensor:
    return radius * (1 + 1e-6) + 1e-9


def attack(rule: Rule, parts: Parts, epsilon: Tensor) -> Tensor:
    """The weights of the adversary who may move ε."""
    weights = rule.weights(parts)
    return certificate.worst_weights(compose(rule, parts, weights), rules.vertex_scores(rule, parts), weights, epsilon)


def grid() -> Iterator[tuple[Rule, Parts]]:
    """250 shapes with 4 examples each: 1,000 problems, K from 1 to 40 and C from 2 to 100."""
    sizes = generator(0, "sizes")
    for index in range(250):
        experts = int(torch.randint(1, 41, (), generator=sizes))
        classes = int(torch.randint(2, 101, (), generator=sizes))
        parts = draw_parts(4, experts, classes, seed=index)
        strength = 0.1 + 2 * float(torch.rand((), generator=sizes))  # from radius 1 to radius nearly 0
        yield SIMPLEX[index % len(SIMPLEX)], replace(parts, residuals=strength * parts.residuals)


def test_no_router_within_the_radius_changes_an_answer() -> None:
    safe = 0
    for index, (rule, parts) in enumerate(grid()):
        certified = certify(rule, parts)
        within = moved(parts, rule, certified.radius * (1 - 1e-9), routers(parts.experts, seed=index))
        assert (loss_of_lead(scores_of(parts, rule, within), certified.predicted) < ROUNDING).all()
        safe += int((certified.radius == 1).sum())
    assert 10 < safe < 990  # both cases were tried


def test_just_above_the_radius_the_adversary_changes_the_answer() -> None:
    for rule, parts in grid():
        certified = certify(rule, parts)
        epsilon = just_above(certified.radius)
        weights, attacked = rule.weights(parts), attack(rule, parts, epsilon.clamp_max(1))
        flips = predicted_classes(compose(rule, parts, attacked)) != certified.predicted
        assert torch.equal(flips, epsilon < 1)
        assert (attacked >= 0).all()
        assert torch.allclose(attacked.sum(-1), torch.ones(4, dtype=torch.float64))
        assert ((attacked - weights).abs().sum(-1) / 2 <= epsilon + 1e-12).all()


@simplex_rules
@given(any_parts())
def test_the_radius_is_exact_for_any_parts(rule: Rule, parts: Parts) -> None:
    weights = rule.weights(parts)
    scores = compose(rule, parts, weights)
    certified = certify(rule, parts)
    corners = torch.eye(parts.experts, dtype=torch.float64)
    assert ((certified.radius >= 0) & (certified.radius <= 1)).all()
    within = moved(parts, rule, certified.radius * (1 - 1e-9), corners)
    assert (loss_of_lead(scores_of(parts, rule, within), certified.predicted) < ROUNDING * 1e3).all()
    beyond = attack(rule, parts, (certified.radius + 1e-3).clamp_max(1))
    margin = certificate.margins(compose(rule, parts, beyond), certified.predicted).amin(-1)
    lead = certificate.margins(scores, certified.predicted).amin(-1)
    assert ((margin <= lead + 1e-9) & ((margin < 1e-9) | (certified.radius > 1 - 1e-3))).all()


@simplex_rules
@given(any_parts())
def test_radius_one_means_that_no_vertex_leads_elsewhere(rule: Rule, parts: Parts) -> None:
    certified = certify(rule, parts)
    reached = rules.vertex_scores(rule, parts).gather(
        -1, certified.predicted.view(-1, 1, 1).expand(-1, parts.experts, 1)
    )
    leads = (rules.vertex_scores(rule, parts) <= reached).all(-1).all(-1)
    assert leads[certified.radius == 1].all()
    margin = certificate.margins(rules.vertex_scores(rule, parts), certified.predicted).amin((-1, -2))
    assert (certified.radius[margin > ROUNDING * 1e3] == 1).all()  # below, a margin may be rounding alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_some_router_breaks_never_rounds_up_to_safe(dtype: torch.dtype) -> None:
    lead, worst = torch.tensor([[1.0]], dtype=dtype), torch.tensor([[-1e-30]], dtype=dtype)
    assert certificate.radius(lead, worst) < 1
    assert certificate.radius(lead, -worst) == 1


@simplex_rules
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_no_router_is_worse_than_the_worst_weights(rule: Rule, epsilon: float) -> None:
    parts = draw_parts(examples=40, experts=6)
    predicted = certify(rule, parts).predicted
    share = torch.full((40,), epsilon, dtype=torch.float64)
    margin = certificate.margins(compose(rule, parts, attack(rule, parts, share)), predicted).amin(-1)
    tried = scores_of(parts, rule, moved(parts, rule, share, routers(6, 2_000)))
    lowest = certificate.margins(tried, predicted).amin((-1, -2))
    assert torch.allclose(margin, lowest, rtol=1e-10)  # the vertices are among those tried


@pytest.mark.parametrize("experts", range(11))
def test_the_worst_margin_in_the_box_is_that_of_the_worst_subset(experts: int) -> None:
    rule, parts = RULES["sum"], draw_parts(20, experts, classes=7)
    subsets = torch.tensor(list(product([0.0, 1.0], repeat=experts)), dtype=torch.float64).expand(20, -1, -1)
    predicted = certify(rule, parts).predicted
    reached = certificate.margins(scores_of(parts, rule, subsets), predicted).amin(1)  # (N, rivals)
    assert torch.allclose(
        certificate.worst_in_box(parts.base, parts.residuals, predicted), reached, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("experts", [1, 3, 8])
@pytest.mark.parametrize("classes", [1, 2, 9])
def test_the_radius_in_the_box_is_exact(experts: int, classes: int) -> None:
    rule, parts = RULES["sum"], draw_parts(60, experts, classes)
    parts = replace(parts, residuals=parts.residuals / (2 * experts))
    certified = certify(rule, parts)
    subsets = torch.tensor(list(product([0.0, 1.0], repeat=experts)), dtype=torch.float64)
    anywhere = torch.rand(2_000, experts, generator=generator(1), dtype=torch.float64)
    within = moved(parts, rule, certified.radius * (1 - 1e-9), torch.cat([subsets, anywhere]))
    kept = certificate.margins(scores_of(parts, rule, within), certified.predicted).amin((-1, -2))
    assert (kept > -ROUNDING).all()
    beyond = moved(parts, rule, just_above(certified.radius).clamp_max(1), subsets)
    flips = (predicted_classes(scores_of(parts, rule, beyond)) != certified.predicted[:, None]).any(-1)
    assert torch.equal(flips, certified.radius < 1)
    assert flips.any()
    assert not flips.all()


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if rule.adversary is None], ids=lambda rule: rule.name
)
def test_where_no_expert_can_be_misused_the_radius_is_one(rule: Rule) -> None:
    assert (certify(rule, draw_parts()).radius == 1).all()


@simplex_rules
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_the_interval_of_a_regression_is_reached_and_never_left(rule: Rule, epsilon: float) -> None:
    parts = draw_parts(50, experts=6, classes=1)
    scores = compose(rule, parts, rule.weights(parts))
    low, high = certificate.output_interval(scores, rules.vertex_scores(rule, parts), epsilon)
    share = torch.full((50,), epsilon, dtype=torch.float64)
    tried = scores_of(parts, rule, moved(parts, rule, share, routers(6)))[..., 0]
    assert torch.allclose(tried.amin(-1), low, rtol=1e-10)  # the vertices are among those tried
    assert torch.allclose(tried.amax(-1), high, rtol=1e-10)


@simplex_rules
def test_the_radius_of_a_regression_is_where_a_fine_search_finds_the_first_flip(rule: Rule) -> None:
    parts = draw_parts(100, experts=4, classes=1)
    parts = replace(parts, residuals=parts.residuals / 8)
    certified = certify(rule, parts)
    scores, corners = compose(rule, parts, rule.weights(parts)), rules.vertex_scores(rule, parts)
    steps = 5_001
    share = torch.linspace(0, 1, steps, dtype=torch.float64).view(-1, 1, 1)
    predicted = predicted_classes((1 - share)[..., None] * scores[:, None] + share[..., None] * corners)  # (S, N, K)
    first = (predicted != certified.predicted[:, None]).any(-1).double().argmax(0)  # (N,) 0 where none flips
    expected = torch.where(first > 0, first / (steps - 1), 1.0)
    assert torch.allclose(certified.radius, expected.double(), rtol=0, atol=1.01 / (steps - 1))
    assert 0 < int((first == 0).sum()) < 100


@pytest.mark.parametrize("name", ["red", "fixed", "sum", "red-oracle", "moe"])
def test_neither_scale_nor_offset_of_the_logits_changes_the_radius(name: str) -> None:
    rule, parts = RULES[name], draw_parts()
    radius = certify(rule, parts).radius
    scaled = replace(parts, base=3 * parts.base, residuals=3 * parts.residuals)
    shift = torch.randn(len(parts), 1, generator=generator(2), dtype=torch.float64)
    shifted = replace(parts, base=parts.base + shift, residuals=parts.residuals - 2 * shift[..., None])
    for other in (scaled, shifted):
        assert torch.allclose(certify(rule, other).radius, radius, rtol=1e-9)


@every_rule
def test_certified_accuracy_starts_at_accuracy_and_only_falls(rule: Rule) -> None:
    parts = draw_parts(500)
    parts = replace(parts, labels=certify(RULES["base"], parts).predicted)
    certified = certify(rule, parts)
    right = certified.predicted == parts.labels
    curve = [certificate.certified_accuracy(certified.radius, right, step / 100) for step in range(101)]
    assert curve[0] == float(right.double().mean())
    assert curve == sorted(curve, reverse=True)
    assert (curve[-1] == curve[0]) == (rule.adversary is None)  # who cannot be misrouted loses nothing


@every_rule
@pytest.mark.parametrize("kind", noise.NOISES.values(), ids=list(noise.NOISES))
def test_what_is_certified_against_all_routers_survives_all_noise(rule: Rule, kind: noise.Noise) -> None:
    parts = draw_parts(500, experts=3)
    parts = replace(
        parts, residuals=parts.residuals / 3 if rule.keeps_base else parts.residuals + 4 * parts.base[:, None]
    )
    certified = certify(rule, parts)
    safe = certified.radius == 1
    assert safe.any()
    for level in noise.LEVELS:
        weights = noisy_weights(rule, parts, kind, level, generator(3, level))
        # a router always trusts somebody: that every expert is gone is an event of its own, and the base answers
        routed = weights.any(-1) if rule.adversary == "simplex" else torch.ones_like(safe)
        kept = predict(rule, parts, weights) == certified.predicted
        assert kept[safe & routed].all()


@pytest.mark.parametrize("epsilon", [-0.01, 1.01, float("nan")])
def test_a_share_outside_zero_to_one_is_refused(epsilon: float) -> None:
    one = torch.ones(1, 1)
    with pytest.raises(RedxError, match="between 0 and 1"):
        certificate.certified_accuracy(one[0], one[0] > 0, epsilon)
    with pytest.raises(RedxError, match="between 0 and 1"):
        certificate.output_interval(one, one[None], epsilon)


NO_BASE = [rule for rule in SIMPLEX if not rule.keeps_base]


@pytest.mark.parametrize("rule", NO_BASE, ids=lambda rule: rule.name)
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_where_no_expert_has_weight_the_radius_is_that_of_brute_force(rule: Rule, classes: int) -> None:
    """The base answers, until any weight is moved: then the experts do, however little it is."""
    parts = draw_parts(200, experts=3, classes=classes)
    own = parts.base[:, None] if classes > 1 else parts.base[:, None] / 8  # some experts agree with the base
    parts = replace(parts, residuals=parts.residuals / 4 + own, base=parts.base if classes > 1 else parts.base / 8)
    weights = torch.zeros(200, 3, dtype=torch.float64)
    certified = certify(rule, parts, weights)
    assert torch.equal(certified.predicted, predicted_classes(rule.read(parts.base)))
    tried = routers(3, 500)
    kept = torch.ones(200, dtype=torch.bool)
    first = torch.ones(200, dtype=torch.float64)  # the smallest share that was seen to change an answer
    for share in (1e-6, *torch.linspace(0.001, 1, 400, dtype=torch.float64).tolist()):
        scores = scores_of(parts, rule, share * tried[None].expand(200, -1, -1))
        flips = (predicted_classes(scores) != certified.predicted[:, None]).any(-1)
        assert not (flips & (certified.radius >= share)).any()
        first = torch.where(kept & flips, share, first)
        kept &= ~flips
    assert torch.equal(certified.radius == 1, kept)
    assert torch.allclose(certified.radius, first, rtol=0, atol=0.003)
    assert 0 < int(kept.sum()) < 200


def test_an_expert_that_was_removed_leaves_a_radius_of_zero_where_the_others_disagree() -> None:
    """The domain has no expert any more, so the base answers; moving 0.001 of the weight changes the answer."""
    base, residuals = torch.tensor([[5.0, 0.0]]), torch.tensor([[[0.0, 1.0], [9.0, 0.0]]])
    parts = Parts(base, residuals, torch.zeros(1, 2), domains=torch.tensor([7]))
    certified = certify("oracle", parts)
    assert (certified.predicted.tolist(), certified.radius.tolist()) == ([0], [0.0])
    assert predict("oracle", parts, torch.tensor([[0.001, 0.0]])).tolist() == [1]
    agreeing = replace(parts, residuals=residuals[:, [1, 1]])
    assert certify("oracle", agreeing).radius.tolist() == [1.0]
