"""Banks: slice k of a bank is expert k alone, and experts can be split, filled in, folded and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models import banks
from redx.models.banks import LowRankBank, MLPBank, initialise_bank, run_bank
from redx.models.base import Base
from redx.seeding import generator

INPUTS, CLASSES = 5, 3


SHAPES = {"linear": (INPUTS, CLASSES), "mlp": (INPUTS, 8, 6, CLASSES)}


every_shape = pytest.mark.parametrize("shape", SHAPES)


def sources(which: Sequence[int], purpose: str) -> list[Generator]:
    return [generator(k, purpose) for k in which]


def bank(which: Sequence[int] = (0, 1, 2), shape: str = "mlp", **options: Any) -> MLPBank:
    """Experts of these numbers, each drawn from its own generator."""
    made = MLPBank(len(which), SHAPES[shape], **options).double()
    banks.initialise_bank(made, sources(which, "start"))
    return made


def inputs(count: int, purpose: str = "inputs") -> Tensor:
    return torch.randn(count, INPUTS, generator=generator(0, purpose), dtype=torch.float64)


@every_shape
def test_slice_k_of_a_bank_is_expert_k_alone(shape: str) -> None:
    x, together = inputs(20), bank(shape=shape)
    said = banks.run_bank(together, x)
    assert said.shape == (20, 3, CLASSES)
    for k in range(3):
        assert torch.allclose(said[:, k], banks.run_bank(bank([k], shape), x)[:, 0], rtol=1e-12)


@pytest.mark.parametrize("activation", banks.ACTIVATIONS)
def test_a_bank_computes_what_plain_layers_would(activation: str) -> None:
    x, stack = inputs(20), bank(scale=0.3, activation=activation)
    for k, tensors in enumerate(banks.split_bank(stack)):
        y = x @ tensors["weights.0"] + tensors["biases.0"]
        for layer in (1, 2):
            y = banks.ACTIVATIONS[activation](y) @ tensors[f"weights.{layer}"] + tensors[f"biases.{layer}"]
        assert torch.allclose(banks.run_bank(stack, x)[:, k], 0.3 * y, rtol=1e-12)


def test_the_layers_of_a_shape() -> None:
    assert banks.layer_sizes("linear", 5, 3, hidden=8, depth=2) == [5, 3]
    assert banks.layer_sizes("mlp", 5, 3, hidden=8, depth=2) == [5, 8, 8, 3]


@every_shape
def test_split_then_join_restores_every_tensor(shape: str) -> None:
    stack, empty = bank(shape=shape), MLPBank(3, SHAPES[shape]).double()
    banks.fill_bank(empty, banks.split_bank(stack))
    assert all(torch.equal(a, b) for a, b in zip(stack.parameters(), empty.parameters(), strict=True))


def test_a_split_expert_is_a_copy() -> None:
    stack = bank()
    before = banks.run_bank(stack, inputs(4))
    for tensor in banks.split_bank(stack)[1].values():
        tensor.zero_()
    assert torch.equal(banks.run_bank(stack, inputs(4)), before)


def test_experts_of_another_make_are_refused() -> None:
    for wrong in (banks.split_bank(bank(shape="linear")), banks.split_bank(bank([0, 1]))):
        with pytest.raises(RedxError, match="do not fit this bank"):
            banks.fill_bank(bank(), wrong)


@every_shape
def test_folding_the_standardisation_keeps_the_function(shape: str) -> None:
    x, stack = 3 * inputs(20) + 1, bank(shape=shape)
    mean, deviation = torch.randn(2, 3, 1, INPUTS, generator=generator(1), dtype=torch.float64)
    deviation = deviation.abs() + 0.1
    expected = stack((x - mean) / deviation)
    banks.fold_standardisation(stack, mean, deviation)
    assert torch.allclose(stack(x.expand(3, -1, -1)), expected, rtol=1e-9)


def test_the_average_of_identical_experts_is_that_expert() -> None:
    (tensors,) = banks.average_bank(bank([1, 1, 1]))
    assert all(torch.allclose(tensors[name], own, rtol=1e-14) for name, own in banks.split_bank(bank([1]))[0].items())


def test_the_average_of_two_experts_lies_halfway() -> None:
    one, two = banks.split_bank(bank([0, 1]))
    (mean,) = banks.average_bank(bank([0, 1]))
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, rtol=1e-14) for name in mean)


def features_of(count: int, seed: int = 0) -> Split:
    """Made-up features of ten classes in five domains."""
    draw = generator(seed, "features")
    labels = torch.arange(count) % 10
    centres = torch.randn(10, 16, generator=generator(0, "centres"))
    return Split(centres[labels] + torch.randn(count, 16, generator=draw), labels, labels // 2)


@pytest.fixture
def base() -> Base:
    weight = torch.randn(16, 10, generator=generator(0, "classifier"))
    return Base(torch.nn.Identity(), weight, torch.zeros(10), torch.zeros(16), torch.ones(16))


def test_an_untrained_correction_is_exactly_nothing(base: Base) -> None:
    bank = LowRankBank(5, 16, 4, base.weight)
    initialise_bank(bank, [generator(0, k) for k in range(5)])
    assert bank.down.any()
    assert torch.equal(run_bank(bank, features_of(20).inputs), torch.zeros(20, 5, 10))
