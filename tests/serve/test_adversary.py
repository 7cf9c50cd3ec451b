"""The adversary of the page: the worst router changes an answer just above its radius, and never below."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.composition.rules import get_rule
from redx.serve.adversary import reachable_classes, why_safe, worst_router


def draw_parts(examples: int = 60, experts: int = 3, classes: int = 4, seed: int = 0) -> Parts:
    """Return random parts."""
    draw = torch.Generator().manual_seed(seed)
    unknown = torch.full((examples,), -1)
    base = 2 * torch.randn(examples, classes, generator=draw)
    residuals = torch.randn(examples, experts, classes, generator=draw)
    return Parts(base, residuals, torch.randn(examples, experts, generator=draw), unknown, unknown)


@pytest.mark.parametrize("name", ["red", "sum", "moe", "fixed", "uniform"])
@pytest.mark.parametrize("classes", [1, 4])
def test_the_worst_router_is_exact(name: str, classes: int) -> None:
    rule, parts = get_rule(name), draw_parts(classes=classes)
    if classes == 1 and name == "moe":
        parts = replace(parts, residuals=3 * parts.residuals)
    weights = rule.weights(parts)
    certified = certify(rule, parts)
    changed = 0
    for row, radius in enumerate(certified.radius.tolist()):
        one, own = parts.only(slice(row, row + 1)), weights[row : row + 1]
        for share, flips in ((radius * 0.999, False), (min(1.0, radius * 1.001 + 1e-4), radius < 1)):
            moved = certify(rule, one, worst_router(rule, one, own, share))
            assert (int(moved.predicted[0]) != int(certified.predicted[row])) == flips
            changed += flips
    assert changed > 0


def test_of_many_classes_only_those_that_a_router_reaches_are_sent() -> None:
    rule, parts = get_rule("red"), draw_parts(examples=20, classes=300)
    predicted = certify(rule, parts).predicted
    for row in range(20):
        one = parts.only(slice(row, row + 1))
        columns = reachable_classes(rule, one, int(predicted[row]))
        assert len(columns) < 300
        for _ in range(200):
            weights = torch.rand(1, 3).pow(3)
            answer = certify(rule, one, weights / weights.sum()).predicted
            assert int(answer) in columns


def test_it_is_said_why_nothing_can_change() -> None:
    silent = replace(draw_parts(1), residuals=torch.zeros(1, 3, 4))
    names = ("a", "b", "c")
    assert "no routing weights" in why_safe(get_rule("base"), silent, 0, names, "x")
    assert "No expert is confident" in why_safe(get_rule("red"), silent, 0, names, "x")
    sure = replace(draw_parts(1), base=torch.tensor([[90.0, 0, 0, 0]]))
    assert "whole weight on" in why_safe(get_rule("red"), sure, 0, names, "x")
    assert "missing" in why_safe(get_rule("sum"), sure, 0, names, "x")
