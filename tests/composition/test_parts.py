"""`Parts` refuses what does not fit, and its views give back exactly what was put in."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from problems import draw
from redx.composition.parts import Parts, predicted_classes
from redx.data.dataset import Data, Split
from redx.errors import RedxError

NAMES = [field.name for field in fields(Parts)]


def same(one: Parts, other: Parts) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_axis_is_refused_by_name(name: str) -> None:
    parts = draw()
    with pytest.raises(RedxError, match=rf"Parts\.{name} has .* axes"):
        replace(parts, **{name: getattr(parts, name)[0]})


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_other_examples_is_refused_by_name(name: str) -> None:
    parts = draw()
    with pytest.raises(RedxError, match=name):
        replace(parts, **{name: getattr(parts, name)[1:]})


@pytest.mark.parametrize("name", ["base", "gates"])
def test_another_number_of_classes_or_experts_is_refused_by_name(name: str) -> None:
    parts = draw()
    with pytest.raises(RedxError, match=rf"Parts\.{name} has shape"):
        replace(parts, **{name: getattr(parts, name)[:, 1:]})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["base", "residuals", "gates"])
def test_nan_and_infinity_are_refused_by_name(name: str, value: float) -> None:
    parts = draw()
    broken = getattr(parts, name).clone()
    broken.view(-1)[-1] = value
    with pytest.raises(RedxError, match=rf"Parts\.{name} contains"):
        replace(parts, **{name: broken})


def test_parts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        draw().base = torch.zeros(1)  # pyright: ignore[reportAttributeAccessIssue]


def test_only_takes_the_same_rows_everywhere() -> None:
    parts = draw()
    rows = torch.tensor([5, 0, 5])
    taken = parts.only(rows)
    assert len(taken) == 3
    assert all(torch.equal(getattr(taken, name), getattr(parts, name)[rows]) for name in NAMES)
    assert same(parts.only(slice(None)), parts)


def test_keep_takes_experts_in_the_order_asked_for_and_back() -> None:
    parts = draw(experts=4)
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
    parts = draw(examples=examples, experts=5, classes=4)
    pieces = list(parts.chunks(numbers))
    assert all(piece.residuals.numel() <= max(numbers, 20) for _, piece in pieces)  # one example at least
    assert all(same(piece, parts.only(rows)) for rows, piece in pieces)
    joined = {name: [getattr(piece, name) for _, piece in pieces] or [getattr(parts, name)] for name in NAMES}
    assert same(Parts(**{name: torch.cat(tensors) for name, tensors in joined.items()}), parts)


def test_an_answer_is_the_highest_class_or_the_output_rounded() -> None:
    assert predicted_classes(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]])).tolist() == [1, 0]
    assert predicted_classes(torch.tensor([[1.6], [-0.7]])).tolist() == [2, -1]
    assert predicted_classes(torch.zeros(2, 3, 4)).shape == (2, 3)


def test_a_digest_changes_with_every_part_of_a_split() -> None:
    split = Split(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
    others = [
        replace(split, inputs=split.inputs + 1),
        replace(split, inputs=split.inputs.view(3, 1, 2)),
        replace(split, labels=split.domains, domains=split.labels),
    ]
    assert split.digest() == split.only(torch.arange(3)).digest()
    assert len({each.digest() for each in [split, *others]}) == 4


def test_a_regression_has_one_output() -> None:
    split = Split(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    data = Data(split, split, split, ("all",), (), "random", 0.0)
    assert data.outputs == 1
    assert replace(data, classes=("a", "b", "c")).outputs == 3
