"""Banks of experts: K networks of one make, held as one stack, each of which learns and speaks alone.

    linear    W_k h + b_k
    mlp       a few hidden layers
    lowrank   W_c V_k σ(U_k h), rank R, V zero at the start, the classifier W_c shared and frozen

times `scale`. Every tensor has the expert as its first axis, so all experts run as one batched product, and expert k
is nothing but slice k. `forward` takes what each expert reads, (K, B, E), and gives (K, B, C); E is D or more, where
the encoder offers features beside h.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from redx.config import BankConfig
from redx.errors import RedxError
from redx.models.base import Base

ACTIVATIONS = {"gelu": nn.functional.gelu, "relu": torch.relu, "tanh": torch.tanh}


ROWS = 8192  # examples that all experts speak about at once


class MLPBank(nn.Module):
    """K multi-layer perceptrons side by side; with sizes (E, C) they are linear."""

    def __init__(self, experts: int, sizes: Sequence[int], scale: float = 1.0, activation: str = "gelu") -> None:
        super().__init__()
        self.scale = scale
        self.activation = ACTIVATIONS[activation]
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(torch.zeros(experts, inner, outer) for inner, outer in pairs)
        self.biases = nn.ParameterList(torch.zeros(experts, 1, outer) for _, outer in pairs)

    def forward(self, x: Tensor) -> Tensor:  # (K, B, E) -> (K, B, C)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = self.activation(x) if layer < last else x
        return self.scale * x

    def bounds(self) -> list[tuple[Tensor, float]]:
        """Each parameter with the largest value it starts from."""
        layers = zip(self.weights, self.biases, strict=True)
        return [(each, weight.shape[1] ** -0.5) for weight, bias in layers for each in (weight, bias)]


class LowRankBank(nn.Module):
    """K low-rank corrections of the representation, seen through the shared classifier."""

    def __init__(
        self, experts: int, inputs: int, rank: int, classifier: Tensor, scale: float = 1.0, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.scale = scale
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Parameter(torch.zeros(experts, inputs, rank))  # U, (K, E, R)
        self.up = nn.Parameter(torch.zeros(experts, rank, classifier.shape[0]))  # V, (K, R, D)
        self.classifier = nn.Buffer(classifier, persistent=False)  # W_c, (D, C): the base's, not the expert's

    def forward(self, x: Tensor) -> Tensor:  # (K, B, E) -> (K, B, C)
        return self.scale * (self.activation(x @ self.down) @ (self.up @ self.classifier))

    def bounds(self) -> list[tuple[Tensor, float]]:
        return [(self.down, self.down.shape[1] ** -0.5), (self.up, 0.0)]


Bank = MLPBank | LowRankBank


def layer_sizes(shape: str, inputs: int, outputs: int, hidden: int, depth: int) -> list[int]:
    """Layer widths of a linear or mlp expert."""
    return [inputs, outputs] if shape == "linear" else [inputs, *[hidden] * depth, outputs]


def initialise_bank(bank: Bank, generators: Sequence[Generator]) -> None:
    """Draw expert k from generator k, so that it starts the same whoever stands beside it."""
    with torch.no_grad():
        for parameter, bound in bank.bounds():
            for index, generator in enumerate(generators):
                parameter[index] = (2 * torch.rand(parameter.shape[1:], generator=generator) - 1) * bound


def fold_standardisation(bank: MLPBank, mean: Tensor, deviation: Tensor) -> None:
    """Put the standardisation (x - mean) / deviation, each (K, 1, E), into the first layer."""
    with torch.no_grad():
        bank.weights[0].copy_(bank.weights[0] / deviation.transpose(1, 2))
        bank.biases[0].copy_(torch.baddbmm(bank.biases[0], -mean, bank.weights[0]))


def run_bank(bank: Bank, x: Tensor) -> Tensor:
    """What every expert says about the same examples: (N, E) to (N, K, C)."""
    count = next(bank.parameters()).shape[0]
    with torch.no_grad():
        said = [bank(rows.expand(count, *rows.shape)).transpose(0, 1) for rows in x.split(ROWS)]
    return torch.cat(said).contiguous()


def split_bank(bank: Bank) -> list[dict[str, Tensor]]:
    """The tensors of each expert alone."""
    tensors = bank.state_dict()
    count = next(iter(tensors.values())).shape[0]
    return [{name: tensor[index].clone() for name, tensor in tensors.items()} for index in range(count)]


def fill_bank(bank: Bank, experts: Sequence[dict[str, Tensor]]) -> None:
    """Fill a bank with experts that were saved one by one, in whatever precision."""
    try:
        bank.load_state_dict(
            {
                name: torch.stack([each[name].to(own.dtype) for each in experts])
                for name, own in bank.state_dict().items()
            }
        )
    except (KeyError, RuntimeError) as error:
        raise RedxError(
            "The experts do not fit this bank (other tensors or shapes); train them with this run's settings."
        ) from error


def average_bank(bank: Bank) -> list[dict[str, Tensor]]:
    """One expert whose parameters are the mean of all: what averaging models would give."""
    return [{name: tensor.mean(0) for name, tensor in bank.state_dict().items()}]


def build_bank(settings: BankConfig, count: int, base: Base) -> Bank:
    """An untrained bank of `count` experts."""
    hidden = settings.hidden or len(base.weight) // 4
    if settings.shape == "lowrank":
        return LowRankBank(count, base.width, hidden, base.weight, settings.scale, settings.activation)
    widths = layer_sizes(settings.shape, base.width, base.outputs, hidden, settings.depth)
    return MLPBank(count, widths, settings.scale, settings.activation)
