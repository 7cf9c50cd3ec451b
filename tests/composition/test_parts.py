"""`Parts` refuses tensors that do not fit together, and its views return exactly the same values."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from helpers.parts import draw_parts
from redx.composition.parts import Parts, predicted_classes
from redx.errors import RedxError

NAMES = [field.name for field in fields(Parts)]


def same(one: Parts, other: Parts) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_axis_is_refused_by_name(name: str) -> None:
    parts = draw_parts()
    with pytest.raises(RedxError, match=rf"Parts\.{name} has .* axes"):
        replace(parts, **{name: getattr(parts, name)[0]})


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_other_examples_is_refused_by_name(name: str) -> None:
    parts = draw_parts()
    with pytest.raises(RedxError, match=name):
        replace(parts, **{name: getattr(parts, name)[1:]})


@pytest.mark.parametrize("name", ["base", "gates"])
def test_another_number_of_classes_or_experts_is_refused_by_name(name: str) -> None:
    parts = draw_parts()
    with pytest.raises(RedxError, match=rf"Parts\.{name} has shape"):
        replace(parts, **{name: getattr(parts, name)[:, 1:]})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["base", "residuals", "gates"])
def test_nan_and_infinity_are_refused_by_name(name: str, value: float) -> None:
    parts = draw_parts()
    broken = getattr(parts, name).clone()
    broken.view(-1)[-1] = value
    with pytest.raises(RedxError, match=rf"Parts\.{name} contains"):
        replace(parts, **{name: broken})


def test_parts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        draw_parts().base = torch.zeros(1)  # pyright: ignore[reportAttributeAccessIssue]


def test_only_takes_the_same_rows_everywhere() -> None:
    parts = draw_parts()
    rows = torch.tensor([5, 0, 5])
    taken = parts.only(rows)
    assert len(taken) == 3
    assert all(torch.equal(getattr(taken, name), getattr(parts, name)[rows]) for name in NAMES)
    assert same(parts.only(slice(None)), parts)


def test_keep_takes_experts_in_the_order_asked_for_and_back() -> None:
    parts = draw_parts(experts=4)
    order = [2, 0, 3, 1]
    kept = parts.keep(order)
    assert kept.experts == 4
    assert torch.equal(kept.residuals[:, 0], parts.residuals[:, 2])
    assert torch.equal(kept.gates[:, 0], parts.gates[:, 2])
    assert same(kept.keep([order.index(k) for k in range(4)]), parts)
    assert parts.keep([]).experts == 0


@pytest.mark.parametrize("examples", [0, 1, 7, 64])
@pytest.mark.parametrize("numbers", [1, 20, 60, 2**24])
def test_chunks_are_bounded_and_join_to_the_whole(examples: int, numbers: int) -> None:
    parts = draw_parts(examples=examples, experts=5, classes=4)
    pieces = list(parts.chunks(numbers))
    assert all(piece.residuals.numel() <= max(numbers, 20) for _, piece in pieces)  # one example at least
    assert all(same(piece, parts.only(rows)) for rows, piece in pieces)
    joined = {name: [getattr(piece, name) for _, piece in pieces] or [getattr(parts, name)] for name in NAMES}
    assert same(Parts(**{name: torch.cat(tensors) for name, tensors in joined.items()}), parts)


def test_the_predicted_class_has_the_highest_score_and_a_regression_is_rounded() -> None:
    assert predicted_classes(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]])).tolist() == [1, 0]
    assert predicted_classes(torch.tensor([[1.6], [-0.7]])).tolist() == [2, -1]
    assert predicted_classes(torch.zeros(2, 3, 4)).shape == (2, 3)
