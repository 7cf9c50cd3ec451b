"""The certificate at exact ties and in floating point: no router within the radius changes an answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import RULES, Rule, compose, get_rule, vertex_scores
from redx.seeding import generator

N, K, C = 600, 4, 4
SIMPLEX = ("red", "fixed", "moe", "uniform")
DTYPES = (torch.float32, torch.float64)
Draw = Callable[[torch.dtype, torch.Generator], Parts]


def _integers(*shape: int, draw: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randint(-2, 3, shape, generator=draw).to(dtype)


def _parts(base: Tensor, residuals: Tensor, draw: torch.Generator) -> Parts:
    gates = _integers(len(base), residuals.shape[1], draw=draw, dtype=base.dtype)
    return Parts(base, residuals, gates, torch.zeros(len(base)).long(), torch.zeros(len(base)).long())


def whole_numbers(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    numbers = _integers(N, C, draw=draw, dtype=dtype), _integers(N, K, C, draw=draw, dtype=dtype)
    return _parts(*numbers, draw)


def quarters_of_a_regression(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    numbers = _integers(N, 1, draw=draw, dtype=dtype) / 4, _integers(N, K, 1, draw=draw, dtype=dtype) / 4
    return _parts(*numbers, draw)


def equal_experts(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    same = _integers(N, 1, C, draw=draw, dtype=dtype).expand(N, K, C).clone()
    return _parts(_integers(N, C, draw=draw, dtype=dtype), same, draw)


def denormals(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    tiny = torch.finfo(dtype).tiny / 4
    parts = whole_numbers(dtype, draw)
    return Parts(parts.base * tiny, parts.residuals * tiny, parts.gates, parts.labels, parts.domains)


def huge_numbers(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    parts = whole_numbers(dtype, draw)
    return Parts(parts.base * 1e30, parts.residuals * 1e30, parts.gates, parts.labels, parts.domains)


def huge_numbers_of_a_regression(dtype: torch.dtype, draw: torch.Generator) -> Parts:
    parts = quarters_of_a_regression(dtype, draw)
    return Parts(parts.base * 1e30, parts.residuals * 1e30, parts.gates, parts.labels, parts.domains)


CASES: tuple[Draw, ...] = (
    whole_numbers,
    quarters_of_a_regression,
    equal_experts,
    denormals,
    huge_numbers,
    huge_numbers_of_a_regression,
)


def routers(rule: Rule, dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    """Vertices, points with dyadic weights, and random points: (P, K)."""
    if rule.adversary == "box":
        corners = torch.tensor(list(itertools.product([0.0, 0.5, 1.0], repeat=K)), dtype=dtype)
        return torch.cat([corners, torch.rand(40, K, generator=draw).to(dtype)])
    dyadic = torch.tensor([point for point in itertools.product(range(5), repeat=K) if sum(point) == 4]) / 4
    random = torch.rand(40, K, generator=draw).log().neg()
    return torch.cat([dyadic.to(dtype), (random / random.sum(-1, keepdim=True)).to(dtype)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("name", [*SIMPLEX, "sum"])
def test_no_router_within_the_radius_changes_an_answer(name: str, case: Draw, dtype: torch.dtype) -> None:
    rule, draw = get_rule(name), generator(0, "ties", name, case.__name__)
    parts = case(dtype, draw)
    weights, certified = rule.weights(parts), certify(rule, parts)
    for router in routers(rule, dtype, draw):
        for share in (1.0, 0.999999, 0.5):
            epsilon = (certified.radius * share)[:, None]
            moved = torch.where(epsilon == 1, router.expand_as(weights), (1 - epsilon) * weights + epsilon * router)
            assert torch.equal(predicted_classes(compose(rule, parts, moved)), certified.predicted)


@pytest.mark.parametrize("name", SIMPLEX)
def test_every_vertex_that_changes_the_answer_takes_the_promise_away(name: str) -> None:
    rule = get_rule(name)
    parts = whole_numbers(torch.float64, generator(1, "ties"))
    certified = certify(rule, parts)
    changed = (predicted_classes(vertex_scores(rule, parts)) != certified.predicted[:, None]).any(1)
    assert (certified.radius[changed] < 1).all()
    assert 0 < int((certified.radius == 1).sum()) < N  # both cases were tried


def test_radii_are_those_of_exact_arithmetic() -> None:
    """For one-hot routers on whole numbers, margins are exact, so the radius can be computed in fractions."""
    rule = get_rule("red-oracle")
    parts = whole_numbers(torch.float64, generator(2, "ties"))
    certified = certify(rule, parts)
    weights, compared = rule.weights(parts), 0
    for row in range(N):
        base = [Fraction(value) for value in parts.base[row].tolist()]
        experts = [[Fraction(value) for value in expert] for expert in parts.residuals[row].tolist()]
        own = experts[int(weights[row].argmax())]
        predicted = int(certified.predicted[row])
        margins = {}
        for rival in (rival for rival in range(C) if rival != predicted):
            at = base[predicted] + own[predicted] - base[rival] - own[rival]
            worst = min(base[predicted] + one[predicted] - base[rival] - one[rival] for one in experts)
            margins[rival] = at, worst
        exact = min([at / (at - worst) for at, worst in margins.values() if worst < 0], default=Fraction(1))
        tied = any(worst == 0 for _, worst in margins.values())
        if not tied:
            compared += 1
            assert float(certified.radius[row]) <= float(exact)
            assert float(certified.radius[row]) == pytest.approx(float(exact), abs=1e-12)
    assert compared > N / 4


def test_a_tie_against_a_lower_index_breaks_the_promise() -> None:
    """Expert 2 ties the classes, and argmax takes the first: some router changes the answer."""
    base, residuals = torch.tensor([[0.0, 1.0]]), torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
    parts = Parts(base, residuals, torch.tensor([[9.0, -9.0]]), torch.tensor([1]), torch.tensor([0]))
    certified = certify(RULES["red"], parts)
    assert certified.predicted.tolist() == [1]
    assert float(certified.radius) < 1


def test_a_tie_that_nobody_moves_keeps_the_promise() -> None:
    """Experts that add nothing cannot change anything, even where the base is tied."""
    parts = Parts(torch.ones(1, 3), torch.zeros(1, 2, 3), torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0]))
    assert float(certify(RULES["red"], parts).radius) == 1
    half = Parts(torch.tensor([[2.5]]), torch.zeros(1, 2, 1), torch.zeros(1, 2), torch.tensor([2]), torch.tensor([0]))
    certified = certify(RULES["red"], half)  # 2.5 rounds to 2, which is even
    assert (certified.predicted.tolist(), float(certified.radius)) == ([2], 1)


@pytest.mark.parametrize(("output", "answer"), [(2.5, 2), (3.5, 4), (0.5, 0), (-0.5, 0)])
def test_ends_of_a_rounding_interval_belong_to_even_answers(output: float, answer: int) -> None:
    """An expert that moves an odd answer onto the end of its interval changes it; an even answer it does not."""
    odd = answer + 1 if output > answer else answer - 1
    base = torch.tensor([[float(odd)]])
    residuals = torch.tensor([[[output - odd]]])
    parts = Parts(base, residuals, torch.zeros(1, 1), torch.tensor([odd]), torch.tensor([1]))
    certified = certify(RULES["red-oracle"], parts)  # an unknown domain: the base answers
    assert certified.predicted.tolist() == [odd]
    assert float(certified.radius) < 1


@pytest.mark.parametrize(("experts", "classes", "largest"), [(2, 2, 1), (4, 4, 1), (4, 4, 2), (8, 5, 3)])
def test_radii_are_short_only_where_the_answer_is_tied(experts: int, classes: int, largest: int) -> None:
    """On whole numbers no radius is above the exact one, and only a tie at the actual weights makes one shorter."""
    draw = generator(3, "ties", experts, classes, largest)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=draw).double()

    parts = Parts(numbers(N, classes), numbers(N, experts, classes), torch.zeros(N, experts).double())
    own = torch.randint(experts, (N,), generator=draw)
    certified = certify("red", parts, torch.nn.functional.one_hot(own, experts).double())
    scores = (parts.base[:, None] + parts.residuals).long()  # (N, K, C): exact
    short = 0
    for row in range(N):
        answer, limits, tied = int(certified.predicted[row]), [Fraction(1)], False
        for rival in (rival for rival in range(classes) if rival != answer):
            lead = (scores[row, :, answer] - scores[row, :, rival]).tolist()
            at, worst = lead[int(own[row])], min(lead)
            tied |= at == 0
            if worst < 0 or (worst == 0 and rival < answer):
                limits.append(Fraction(at, at - worst) if at > worst else Fraction(0))
        found = Fraction(float(certified.radius[row]))
        assert found <= min(limits)
        if min(limits) - found > Fraction(1, 10**9):
            assert tied
            assert found == 0
            short += 1
    assert short > 0
