"""Thresholds from bounds equal those of the exact rule bit for bit, for every kind of data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from redx.composition import risk as thresholds
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import get_rule
from redx.seeding import generator


def draw(kind: str, classes: int, experts: int, dtype: torch.dtype, examples: int = 150) -> Parts:
    source = generator(0, f"thresholds {kind} {classes} {experts}")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=dtype)

    labels = torch.randint(classes, (examples,), generator=source)
    base, residuals, sure = normal(examples, classes), normal(examples, experts, classes), normal(examples, experts)
    base[torch.arange(examples), labels] += 2
    if kind == "whole":  # exact ties of scores and of confidences
        base, residuals, sure = base.round(), residuals.round(), sure.round()
    elif kind == "infinite":
        sure[torch.rand(sure.shape, generator=source) < 0.3] = math.inf
        sure[torch.rand(sure.shape, generator=source) < 0.3] = -math.inf
    elif kind == "silent":
        residuals *= (torch.rand(examples, experts, 1, generator=source) < 0.3).to(dtype)
    elif kind == "huge":  # sums overflow
        base, residuals = base * (torch.finfo(dtype).max / 1e8), residuals * (torch.finfo(dtype).max / 6)
    elif kind == "rounding":  # residuals as small as the rounding errors of the base
        base, residuals = base.round(), residuals.round() * torch.finfo(dtype).eps
    return Parts(base, residuals, torch.zeros_like(sure), labels, labels, sure)


@pytest.mark.parametrize("name", ["red", "sum"])
@pytest.mark.parametrize("kind", ["plain", "whole", "infinite", "silent", "huge", "rounding"])
@pytest.mark.parametrize(("classes", "experts"), [(2, 30), (5, 1), (7, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_give_the_bits_of_the_exact_rule(
    name: str, kind: str, classes: int, experts: int, dtype: torch.dtype
) -> None:
    rule, parts = get_rule(name), draw(kind, classes, experts, dtype)
    rows = (predicted_classes(parts.base) == parts.labels).nonzero()[:, 0]
    expected = torch.full((len(parts),), -math.inf, dtype=dtype)
    expected[rows] = thresholds._exact_thresholds(rule, parts.only(rows))
    assert torch.equal(thresholds.harm_thresholds(rule, parts), expected)


@pytest.mark.parametrize("name", ["red", "sum"])
def test_chunks_do_not_change_thresholds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, parts = get_rule(name), draw("plain", 4, 9, torch.float32)
    whole = thresholds.harm_thresholds(rule, parts)
    for constant, value in (("CHUNK", 100), ("BOX_CHUNK", 100), ("BOX_ROWS", 7)):
        monkeypatch.setattr(thresholds, constant, value)
    assert torch.equal(thresholds.harm_thresholds(rule, parts), whole)


@pytest.mark.parametrize("name", ["red", "sum"])
def test_bounds_decide_most_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, asked = thresholds._exact_thresholds, []
    monkeypatch.setattr(
        thresholds, "_exact_thresholds", lambda rule, parts: asked.append(len(parts)) or exact(rule, parts)
    )
    thresholds.harm_thresholds(get_rule(name), draw("plain", 5, 20, torch.float32))
    assert sum(asked) < 15
