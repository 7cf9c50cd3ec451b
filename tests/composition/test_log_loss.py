"""Certified log-loss against brute force: no router within ε has a larger loss, and the adversary reaches it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.parts import any_parts, draw_parts
from redx.composition.evaluation import evaluate
from redx.composition.log_loss import (
    LossCertificate,
    certified_losses,
    certified_request_losses,
    log_losses,
    moved_losses,
    moved_to_expert,
)
from redx.composition.parts import Cutoffs, Losses, Parts
from redx.composition.rules import RULES, Rule, compose, to_logits
from redx.composition.summary import summarise
from redx.config import BankId
from redx.errors import RedxError
from redx.seeding import generator

SIMPLEX = [rule for rule in RULES.values() if rule.adversary == "simplex"]
EPSILONS = (0.0, 0.05, 0.3, 0.7, 1.0)
ROUTERS = 4000
PLAIN = BankId("residual", "plain")

simplex_rules = pytest.mark.parametrize("rule", SIMPLEX, ids=lambda rule: rule.name)
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


def routers(experts: int, seed: int = 0) -> Tensor:
    """All vertices of the simplex, and points of it ever closer to its corners: (P, K)."""
    drawn = torch.empty(ROUTERS, experts, dtype=torch.float64).exponential_(generator=generator(seed, "routers"))
    drawn = drawn ** torch.tensor([1.0, 1.0, 4.0, 16.0], dtype=torch.float64).repeat(ROUTERS // 4)[:, None]
    return torch.cat([torch.eye(experts, dtype=torch.float64), drawn / drawn.sum(-1, keepdim=True)])


def losses_under(rule: Rule, parts: Parts, weights: Tensor) -> Tensor:
    """The log-loss by definition, for many weights an example: (N, P, K) to (N, P)."""
    found = [to_logits(rule, compose(rule, parts, column)) for column in weights.unbind(1)]
    return torch.stack([cross_entropy(logits, parts.true_labels(), reduction="none") for logits in found], 1).double()


def with_cutoffs(parts: Parts) -> Parts:
    sure = torch.randn(parts.gates.shape, generator=generator(0, "sure"), dtype=parts.gates.dtype)
    return parts.with_confidences(sure, Cutoffs(0.2, 0.2))


@simplex_rules
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("cut", [False, True])
def test_no_router_exceeds_the_loss_and_one_reaches_it(rule: Rule, epsilon: float, cut: bool) -> None:
    parts = draw_parts(6, 4, 5)
    parts = with_cutoffs(parts) if cut else parts
    weights = rule.weights(parts)
    moved = (1 - epsilon) * weights[:, None] + epsilon * routers(4)
    brute = losses_under(rule, parts, moved).amax(1)
    brute = torch.maximum(brute, log_losses(rule, parts))
    certified = certified_losses(rule, parts, epsilon)
    assert bool((certified >= brute).all())
    assert torch.allclose(certified, brute, rtol=0, atol=1e-10), "vertices are among the routers"


@given(any_parts(), st.floats(0, 1))
def test_any_values(parts: Parts, epsilon: float) -> None:
    for rule in (RULES["red"], RULES["moe"], RULES["sum"]):
        certified, weights = certified_losses(rule, parts, epsilon), rule.weights(parts)
        drawn = torch.rand(20, parts.experts, dtype=torch.float64, generator=generator(0, "drawn"))
        drawn = drawn if rule.adversary == "box" else drawn / drawn.sum(-1, keepdim=True)
        moved = (1 - epsilon) * weights[:, None] + epsilon * drawn
        assert bool((certified[:, None] >= losses_under(rule, parts, moved)).all())


@every_rule
def test_zero_is_the_plain_loss_and_the_loss_rises(rule: Rule) -> None:
    parts = draw_parts(8, 3, 4)
    curve = torch.stack([certified_losses(rule, parts, epsilon) for epsilon in (0, 0.1, 0.2, 0.5, 0.9, 1)])
    plain = cross_entropy(to_logits(rule, compose(rule, parts)), parts.true_labels(), reduction="none")
    assert torch.equal(curve[0], plain)
    assert bool((curve.diff(dim=0) >= -1e-12).all())
    if rule.adversary is None:
        assert torch.equal(curve[-1], curve[0])


@simplex_rules
def test_all_weight_moved_is_the_largest_vertex(rule: Rule) -> None:
    parts = draw_parts(8, 3, 4)
    vertices = losses_under(rule, parts, torch.eye(3, dtype=torch.float64).expand(8, 3, 3))
    assert torch.allclose(certified_losses(rule, parts), vertices.amax(-1), rtol=0, atol=1e-10)
    assert torch.allclose(moved_to_expert(rule, parts), vertices, rtol=0, atol=1e-10)


def test_inactive_experts_count_as_the_base() -> None:
    parts = draw_parts(8, 3, 4)
    silent = parts.with_confidences(torch.zeros_like(parts.gates), Cutoffs(torch.inf, torch.inf))
    base = cross_entropy(parts.base, parts.true_labels(), reduction="none")
    assert torch.allclose(certified_losses("red", silent), base, rtol=0, atol=1e-12)
    one = torch.zeros_like(parts.gates).index_fill_(1, torch.tensor([1]), 1.0)
    alone = parts.with_confidences(one, Cutoffs(0.5, 0.5))
    own = cross_entropy(parts.base + parts.residuals[:, 1], parts.true_labels(), reduction="none")
    assert torch.allclose(certified_losses("red", alone), torch.maximum(own, base), rtol=0, atol=1e-10)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_free_weights_are_bounded_and_exact_for_two_classes(classes: int, epsilon: float) -> None:
    parts = draw_parts(8, 4, classes)
    vertices = torch.tensor(list(product((0.0, 1.0), repeat=4)), dtype=torch.float64)
    moved = (1 - epsilon) * torch.ones(8, 1, 4, dtype=torch.float64) + epsilon * vertices
    brute, certified = losses_under(RULES["sum"], parts, moved).amax(1), certified_losses("sum", parts, epsilon)
    assert bool((certified >= brute).all())
    if classes == 2:
        assert torch.allclose(certified, brute, rtol=0, atol=1e-10)
    with pytest.raises(RedxError, match="free"):
        moved_to_expert("sum", parts)
    with pytest.raises(RedxError, match="free"):
        certified_request_losses("sum", parts)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_requests_against_routers_that_are_constant_over_them(epsilon: float) -> None:
    parts = replace(draw_parts(12, 3, 5), groups=torch.tensor([7, 7, 2, 2, 2, 9, 7, 9, 2, 2, 7, 9]))
    weights = RULES["red"].weights(parts)
    every = losses_under(RULES["red"], parts, (1 - epsilon) * weights[:, None] + epsilon * routers(3))
    plain = log_losses("red", parts)
    brute = []
    for group in (2, 7, 9):
        mine = parts.groups == group
        brute.append(max(float(every[mine].mean(0).amax()), float(plain[mine].mean())))
    found = certified_request_losses("red", parts, epsilon)
    exact = torch.tensor(brute, dtype=torch.float64)
    assert torch.allclose(found, exact, rtol=0, atol=1e-10)
    assert bool((found >= exact - 1e-14).all()), "but for the rounding of the sum"
    tokens = certified_losses("red", parts, epsilon)
    assert bool((found <= torch.stack([tokens[parts.groups == one].mean() for one in (2, 7, 9)]) + 1e-12).all())


def test_requests_of_one_router_reach_the_largest_vertex() -> None:
    parts = replace(draw_parts(9, 3, 5), groups=torch.arange(9) // 3)
    constant = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).expand(9, -1)
    vertices = moved_to_expert("red", parts).view(3, 3, 3).mean(1).amax(-1)
    assert torch.allclose(certified_request_losses("red", parts, 1.0, constant), vertices)


def test_pieces_give_what_the_whole_gives() -> None:
    parts = replace(draw_parts(40, 3, 4), groups=torch.arange(40) // 6)
    rule, whole, apart = RULES["red"], LossCertificate(RULES["red"], EPSILONS), LossCertificate(RULES["red"], EPSILONS)
    whole.update(parts, rule.weights(parts), parts.groups)
    for piece in (parts.only(slice(start, start + 7)) for start in range(0, 40, 7)):
        apart.update(piece, rule.weights(piece), piece.groups)
    for one, other in (whole.means(), apart.means()), (whole.request_means(), apart.request_means()):
        assert one == pytest.approx(other, rel=1e-12)
    assert whole.request_losses(1.0) == pytest.approx(apart.request_losses(1.0), rel=1e-12)


def test_float32_is_rounded_upwards() -> None:
    parts = draw_parts(64, 5, 6, dtype=torch.float32)
    parts = replace(parts, base=100 * parts.base, residuals=300 * parts.residuals)
    exact = replace(parts, **{name: getattr(parts, name).double() for name in ("base", "residuals", "gates")})
    drawn = torch.cat([torch.eye(5), torch.rand(200, 5, generator=generator(0, "drawn"))])
    drawn = drawn / drawn.sum(-1, keepdim=True)
    certified = certified_losses("red", parts)
    for weights in drawn:
        scores = compose("red", parts, weights.expand(64, -1))
        assert bool((certified >= cross_entropy(scores.double(), parts.true_labels(), reduction="none")).all())
    slack = certified - certified_losses("red", exact)
    assert bool((slack >= 0).all())
    assert float(slack.max()) < 0.05, "of losses of up to 3,000"


def test_small_probabilities_are_rounded_upwards() -> None:
    parts = draw_parts(64, 5, 100, dtype=torch.float32)
    parts = replace(parts, residuals=4 * parts.residuals)
    certified = certified_losses("uniform", parts)
    drawn = torch.cat([torch.eye(5), torch.rand(200, 5, generator=generator(0, "drawn"))])
    for weights in drawn / drawn.sum(-1, keepdim=True):
        probabilities = compose("uniform", parts, weights.expand(64, -1)).double()
        own = probabilities.gather(1, parts.true_labels()[:, None])[:, 0] / probabilities.sum(-1)
        assert bool((certified >= -own.log()).all())


def total_variation_vertices(weights: Tensor, epsilon: float) -> list[Tensor]:
    """All vertices of the weights within a total variation of ε, by definition."""
    experts, found = len(weights), []
    for receiver in range(experts):
        for last in range(experts):
            others = [k for k in range(experts) if k != last]
            for count in range(experts):
                for emptied in combinations(others, count):
                    rest = epsilon - float(weights[list(emptied)].sum())
                    if -1e-12 <= rest <= float(weights[last]) + 1e-12:
                        point = weights.clone()
                        point[list(emptied)] = 0
                        point[last] -= rest
                        point[receiver] += epsilon
                        found.append(point)
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.35, 0.6, 1.0])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("rule", ["red", "moe", "uniform"])
def test_total_variation_is_bracketed(epsilon: float, classes: int, rule: str) -> None:
    parts = draw_parts(12, 4, classes)
    weights = RULES[rule].weights(parts)
    low, high = moved_losses(rule, parts, epsilon)
    for index in range(len(parts)):
        one = parts.only(slice(index, index + 1))
        points = torch.stack([weights[index], *total_variation_vertices(weights[index], epsilon)])
        exact = float(losses_under(RULES[rule], one, points[None]).amax())
        assert float(low[index]) <= exact + 1e-9
        assert float(high[index]) >= exact - 1e-12
        drawn = routers(4)[:500]
        near = drawn[(drawn - weights[index]).clamp_min(0).sum(-1) <= epsilon]
        if len(near):
            assert float(losses_under(RULES[rule], one, near[None]).amax()) <= exact + 1e-9
    if (classes == 2 and rule == "red") or epsilon in (0.0, 1.0):
        assert torch.allclose(low, high, rtol=0, atol=1e-9)
    assert bool((high >= certified_losses(rule, parts, epsilon) - 1e-9).all()), "it is the stronger adversary"


def test_total_variation_needs_weights_on_the_simplex() -> None:
    parts = draw_parts(3, 2, 3)
    with pytest.raises(RedxError, match="simplex"):
        moved_losses("sum", parts, 0.5)
    with pytest.raises(RedxError, match="sum to 1"):
        moved_losses("red", parts, 0.5, torch.zeros(3, 2))


def shortlisted(parts: Parts, mixed: bool) -> Parts:
    """A record that says of itself that it holds a shortlist, with the losses over all of its columns."""
    base = cross_entropy(parts.base, parts.true_labels(), reduction="none")
    experts = moved_to_expert("red", parts)
    return replace(parts, losses=Losses(base, experts, {"red": log_losses("red", parts)} if mixed else {}))


def test_shortlists_are_exact_at_the_ends_and_bounded_in_between() -> None:
    parts = replace(draw_parts(12, 3, 5), groups=torch.arange(12) // 4)
    short = shortlisted(parts, mixed=True)
    for epsilon in (0.0, 1.0):
        assert torch.allclose(certified_losses("red", short, epsilon), certified_losses("red", parts, epsilon))
        found = certified_request_losses("red", short, epsilon)
        assert torch.allclose(found, certified_request_losses("red", parts, epsilon))
    for epsilon in (0.1, 0.5, 0.9):
        assert bool((certified_losses("red", short, epsilon) >= certified_losses("red", parts, epsilon) - 1e-9).all())
    unknown = shortlisted(parts, mixed=False)
    assert torch.allclose(certified_losses("red", unknown), moved_to_expert("red", parts).amax(-1))
    with pytest.raises(RedxError, match="choose ε = 1"):
        certified_losses("red", unknown, 0.5)
    with pytest.raises(RedxError, match="choose ε = 1"):
        certified_request_losses("red", unknown, 0.5)


def test_what_has_no_log_loss_is_refused() -> None:
    with pytest.raises(RedxError, match="regression"):
        log_losses("red", draw_parts(3, 2, 1))
    with pytest.raises(RedxError, match="between 0 and 1"):
        certified_losses("red", draw_parts(3, 2, 3), 1.5)


def test_rows_and_summary_hold_the_certified_loss() -> None:
    parts = replace(draw_parts(12, 2, 3), groups=torch.arange(12) // 4)
    rows = evaluate({PLAIN: parts}, task="t", seed=0, domains=("x", "y"), rules=["base", "red", "sum"], kinds=[])
    figures = summarise(rows, {"residual": "plain"}, 3)
    red = figures["red"]
    assert red["certified_loss"]["0"] == pytest.approx(red["loss"], rel=1e-6)
    assert red["certified_loss"]["1"] == pytest.approx(float(certified_losses("red", parts).mean()))
    assert red["request_loss"]["1"] == pytest.approx(float(certified_request_losses("red", parts).mean()))
    assert red["request_loss"]["1"] <= red["certified_loss"]["1"]
    assert set(red["per_domain_request_loss"]) == {"x", "y"}
    assert "request_loss" not in figures["sum"]
    assert set(figures["base"]["certified_loss"].values()) == {figures["base"]["certified_loss"]["0"]}
    pieces = [parts.only(slice(start, start + 5)) for start in (0, 5, 10)]
    again = evaluate({PLAIN: pieces}, task="t", seed=0, domains=("x", "y"), rules=["base", "red", "sum"], kinds=[])  # pyright: ignore[reportArgumentType]
    for row, other in zip(rows, again, strict=True):
        assert row | {"value": 0} == other | {"value": 0}
        assert row["value"] == pytest.approx(other["value"], rel=1e-6)


def test_a_regression_has_no_rows_of_log_loss() -> None:
    rows = evaluate({PLAIN: draw_parts(6, 2, 1)}, task="t", seed=0, domains=("x", "y"), rules=["red"], kinds=[])
    assert not [row for row in rows if "loss@" in row["metric"]]
