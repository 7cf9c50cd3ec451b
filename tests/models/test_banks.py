"""Banks: slice k of a bank is expert k alone, and experts can be split, filled in, folded and averaged."""

from __future__ import annotations

import pytest
import torch

from helpers.banks import CLASSES, INPUTS, SIZES, draw_bank, draw_inputs
from helpers.models import draw_features, identity_base
from redx.config import BankConfig
from redx.errors import RedxError
from redx.models import banks
from redx.models.banks import LowRankBank, MLPBank
from redx.seeding import generator

every_shape = pytest.mark.parametrize("shape", SIZES)


@every_shape
def test_slice_k_of_a_bank_is_expert_k_alone(shape: str) -> None:
    x, together = draw_inputs(20), draw_bank(shape=shape)
    outputs = banks.run_bank(together, x)
    assert outputs.shape == (20, 3, CLASSES)
    for k in range(3):
        assert torch.allclose(outputs[:, k], banks.run_bank(draw_bank([k], shape), x)[:, 0], rtol=1e-12)


@pytest.mark.parametrize("activation", banks.ACTIVATIONS)
def test_a_bank_computes_what_plain_layers_would(activation: str) -> None:
    x, stack = draw_inputs(20), draw_bank(scale=0.3, activation=activation)
    for k, tensors in enumerate(banks.split_bank(stack)):
        y = x @ tensors["weights.0"] + tensors["biases.0"]
        for layer in (1, 2):
            y = banks.ACTIVATIONS[activation](y) @ tensors[f"weights.{layer}"] + tensors[f"biases.{layer}"]
        assert torch.allclose(banks.run_bank(stack, x)[:, k], 0.3 * y, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "sizes"), [("linear", [(16, 10)]), ("mlp", [(16, 8), (8, 8), (8, 10)]), ("lowrank", [(16, 8), (8, 16)])]
)
def test_the_settings_decide_the_layers(shape: str, sizes: list[tuple[int, int]]) -> None:
    config = BankConfig.model_validate({"shape": shape, "hidden": 8, "depth": 2})
    bank = banks.build_bank(config, 3, identity_base())
    matrices = [parameter for name, parameter in bank.named_parameters() if "biases" not in name]
    assert [tuple(matrix.shape) for matrix in matrices] == [(3, *size) for size in sizes]
    assert not any(parameter.any() for parameter in bank.parameters())


@every_shape
def test_splitting_and_filling_a_bank_restores_every_tensor(shape: str) -> None:
    stack, empty = draw_bank(shape=shape), MLPBank(3, SIZES[shape]).double()
    banks.fill_bank(empty, banks.split_bank(stack))
    assert all(torch.equal(a, b) for a, b in zip(stack.parameters(), empty.parameters(), strict=True))


def test_a_split_expert_is_a_copy() -> None:
    stack = draw_bank()
    before = banks.run_bank(stack, draw_inputs(4))
    for tensor in banks.split_bank(stack)[1].values():
        tensor.zero_()
    assert torch.equal(banks.run_bank(stack, draw_inputs(4)), before)


def test_experts_of_another_shape_are_refused() -> None:
    for wrong in (banks.split_bank(draw_bank(shape="linear")), banks.split_bank(draw_bank([0, 1]))):
        with pytest.raises(RedxError, match="do not fit this bank"):
            banks.fill_bank(draw_bank(), wrong)


@every_shape
def test_folding_the_standardisation_keeps_the_function(shape: str) -> None:
    x, stack = 3 * draw_inputs(20) + 1, draw_bank(shape=shape)
    mean, deviation = torch.randn(2, 3, 1, INPUTS, generator=generator(1), dtype=torch.float64)
    deviation = deviation.abs() + 0.1
    expected = stack((x - mean) / deviation)
    banks.fold_standardisation(stack, mean, deviation)
    assert torch.allclose(stack(x.expand(3, -1, -1)), expected, rtol=1e-9)


def test_the_average_of_identical_experts_is_that_expert() -> None:
    (tensors,) = banks.average_bank(draw_bank([1, 1, 1]))
    (expert,) = banks.split_bank(draw_bank([1]))
    assert all(torch.allclose(tensors[name], own, rtol=1e-14) for name, own in expert.items())


def test_the_average_of_two_experts_lies_halfway() -> None:
    one, two = banks.split_bank(draw_bank([0, 1]))
    (mean,) = banks.average_bank(draw_bank([0, 1]))
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, rtol=1e-14) for name in mean)


def test_an_untrained_low_rank_correction_is_exactly_zero() -> None:
    bank = LowRankBank(5, 16, 4, identity_base().weight)
    banks.initialise_bank(bank, [generator(0, k) for k in range(5)])
    assert bank.down.any()
    assert torch.equal(banks.run_bank(bank, draw_features(20).inputs), torch.zeros(20, 5, 10))
