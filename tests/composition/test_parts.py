"""`Parts` refuses tensors that do not fit together, and its views return exactly the same values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.parts import draw_parts
from redx.composition.evaluation import certify
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.rules import compose, get_rule
from redx.errors import RedxError

NAMES = ["base", "residuals", "gates", "labels", "domains"]


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
    assert same(Parts.concatenate([piece for _, piece in pieces] or [parts]), parts)


def test_the_predicted_class_has_the_highest_score_and_a_regression_is_rounded() -> None:
    assert predicted_classes(torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 0.0]])).tolist() == [1, 0]
    assert predicted_classes(torch.tensor([[1.6], [-0.7]])).tolist() == [2, -1]
    assert predicted_classes(torch.zeros(2, 3, 4)).shape == (2, 3)


def test_residuals_at_or_below_the_cutoff_are_zero() -> None:
    parts = draw_parts(examples=40)
    sure = parts.gates.round()
    cut = replace(parts, confidences=sure, cutoffs=Cutoffs(simplex=0.0, box=1.0))
    for region, cutoff in (("simplex", 0.0), ("box", 1.0)):
        above = cut.above_cutoff(region)
        assert above.cutoffs is None
        assert torch.equal(above.residuals[sure > cutoff], parts.residuals[sure > cutoff])
        assert not bool(above.residuals[sure <= cutoff].any())
    assert same(cut.above_cutoff("simplex").only(slice(3, 9)), cut.only(slice(3, 9)).above_cutoff("simplex"))


def test_an_infinite_cutoff_leaves_the_base_bit_for_bit() -> None:
    parts = draw_parts(examples=40)
    silent = replace(parts, confidences=parts.gates, cutoffs=Cutoffs(torch.inf, torch.inf))
    for name in ("red", "sum", "fixed", "red-oracle"):
        rule = get_rule(name)
        assert torch.equal(compose(rule, silent, rule.weights(silent)), parts.base)
        assert bool((certify(rule, silent).radius == 1).all())


def test_no_cutoff_and_minus_infinity_are_the_same() -> None:
    parts = draw_parts(examples=40)
    everywhere = replace(parts, confidences=parts.gates, cutoffs=Cutoffs(-torch.inf, -torch.inf))
    assert same(everywhere.above_cutoff("simplex"), parts)


def test_confidences_follow_rows_experts_and_pieces() -> None:
    parts = replace(draw_parts(examples=30), cutoffs=None)
    sure = replace(parts, confidences=parts.gates, cutoffs=Cutoffs(0.0, 0.0))
    assert torch.equal(fetch(sure.keep([1]).confidences), parts.gates[:, [1]])
    pieces = [piece for _, piece in sure.chunks(numbers=1)]
    assert len(pieces) == 30
    again = Parts.concatenate(pieces)
    assert same(again, sure)
    assert torch.equal(fetch(again.confidences), parts.gates)
    assert again.cutoffs == sure.cutoffs


def test_confidences_that_do_not_fit_are_refused() -> None:
    parts = draw_parts()
    with pytest.raises(RedxError, match="confidences must be numbers of shape"):
        replace(parts, confidences=parts.gates[:, :1])
    with pytest.raises(RedxError, match="confidences must be numbers of shape"):
        replace(parts, confidences=parts.gates * torch.nan)
    with pytest.raises(RedxError, match="need confidences"):
        replace(parts, cutoffs=Cutoffs(0.0, 0.0))


def fetch(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_parts_of_whole_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RedxError, match=r"not fractions; convert it with .float\(\)"):
        Parts(torch.ones(2, 3).to(dtype), torch.ones(2, 2, 3).to(dtype), torch.ones(2, 2).to(dtype))
