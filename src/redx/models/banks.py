"""Banks of experts: K networks of one architecture, kept as one stack of tensors.

    linear    W_k h + b_k
    mlp       a few hidden layers
    lowrank   W_c V_k σ(U_k h), rank R; V_k is zero at the start, the classifier W_c is the base's and frozen
    shift     W_c (code(v + g_k(h)) - h), for a base that codes a value v (`value_bank`); g_k is an mlp
    value     the same as a head of its own: W_c code(v + g_k(h))

times `scale`. The first axis of every tensor is the expert, so all experts run as one batched product, and expert k is
slice k of every tensor. `forward` takes what each expert reads, (K, B, E), to its outputs, (K, B, C).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from redx.config import BankConfig
from redx.errors import RedxError
from redx.models.base import Base
from redx.models.fitting import expected_shapes
from redx.models.value_bank import SHAPES, ValueBank, check_value_base

ACTIVATIONS = {"gelu": nn.functional.gelu, "relu": torch.relu, "tanh": torch.tanh}
MISFIT = "The experts do not fit this bank (other tensors or shapes); train them with this run's settings."
ROWS = 8192  # examples that go through all experts at once


class MLPBank(nn.Module):
    """K multi-layer perceptrons side by side; with two sizes, (E, C), they are linear.

    Parameters
    ----------
    experts
        Number of experts K.
    sizes
        Widths of the layers, from the input E to the output C.
    scale
        Factor on the output.
    activation
        `gelu`, `relu` or `tanh`, between the layers.

    Examples
    --------
    >>> import torch
    >>> MLPBank(3, [8, 16, 4])(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 4])
    """

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

    def initial_bounds(self) -> list[tuple[Tensor, float]]:
        """Return every parameter with the bound of the uniform distribution that it is drawn from."""
        layers = zip(self.weights, self.biases, strict=True)
        return [(tensor, weight.shape[1] ** -0.5) for weight, bias in layers for tensor in (weight, bias)]


class LowRankBank(nn.Module):
    """K low-rank corrections of the features h, mapped to logits by the base's classifier.

    Parameters
    ----------
    experts
        Number of experts K.
    inputs
        Number of features E that an expert reads.
    rank
        Rank R of the correction.
    classifier
        The base's W_c, of shape (D, C); it is not part of the expert and is not saved with it.
    new
        Number of further outputs for classes that the base does not know, with weights of their own.
    scale
        Factor on the output.
    activation
        `gelu`, `relu` or `tanh`, between the two factors.

    Examples
    --------
    >>> import torch
    >>> LowRankBank(3, inputs=8, rank=2, classifier=torch.ones(8, 4))(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 4])
    """

    def __init__(
        self,
        experts: int,
        inputs: int,
        rank: int,
        classifier: Tensor,
        scale: float = 1.0,
        activation: str = "gelu",
        new: int = 0,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.activation = ACTIVATIONS[activation]
        self.down = nn.Parameter(torch.zeros(experts, inputs, rank))  # U, (K, E, R)
        self.up = nn.Parameter(torch.zeros(experts, rank, classifier.shape[0]))  # V, (K, R, D)
        self.classifier = nn.Buffer(classifier, persistent=False)  # W_c, (D, C)
        self.new_weight = nn.Parameter(torch.zeros(experts, rank, new)) if new else None  # (K, R, M)
        self.new_bias = nn.Parameter(torch.zeros(experts, 1, new)) if new else None  # (K, 1, M)

    def forward(self, x: Tensor) -> Tensor:  # (K, B, E) -> (K, B, C)
        inner, outer = self.activation(x @ self.down), self.up @ self.classifier
        if self.new_weight is None or self.new_bias is None:
            return self.scale * (inner @ outer)
        return self.scale * torch.cat([inner @ outer, torch.baddbmm(self.new_bias, inner, self.new_weight)], -1)

    def initial_bounds(self) -> list[tuple[Tensor, float]]:
        """Return every parameter with the bound of the uniform distribution that it is drawn from."""
        new = [(tensor, 0.0) for tensor in (self.new_weight, self.new_bias) if tensor is not None]
        return [(self.down, self.down.shape[1] ** -0.5), (self.up, 0.0), *new]


Bank = MLPBank | LowRankBank | ValueBank


def build_bank(config: BankConfig, experts: int, base: Base) -> Bank:
    """Return an untrained bank.

    Parameters
    ----------
    config
        Architecture of the experts.
    experts
        Number of experts K.
    base
        The frozen base, which gives the widths and, for low-rank experts, the classifier.

    Returns
    -------
    Bank
        A bank whose parameters are all zero; `initialise_bank` draws them.
    """
    hidden = config.hidden or len(base.weight) // 4
    if config.shape == "lowrank":
        new = base.outputs - base.known
        return LowRankBank(experts, base.width, hidden, base.weight, config.scale, config.activation, new)
    inner = [] if config.shape == "linear" else [hidden] * config.depth
    if config.shape in SHAPES:
        check_value_base(base)
        network = MLPBank(experts, [base.width, *inner, 1], config.scale, config.activation)
        return ValueBank(network, base, shift=config.shape == "shift")
    return MLPBank(experts, [base.width, *inner, base.outputs], config.scale, config.activation)


def initialise_bank(bank: Bank, generators: Sequence[Generator]) -> None:
    """Draw the parameters of expert k from generator k, so that they do not depend on the other experts."""
    with torch.no_grad():
        for parameter, bound in _initial_bounds(bank):
            for index, generator in enumerate(generators):
                parameter[index] = (2 * torch.rand(parameter.shape[1:], generator=generator) - 1) * bound


def _initial_bounds(bank: Bank) -> list[tuple[Tensor, float]]:
    """Return every parameter with the bound of its distribution; the last layer of a `ValueBank` is zero."""
    if not isinstance(bank, ValueBank):
        return bank.initial_bounds()
    assert isinstance(bank.network, MLPBank)
    *inner, weight, bias = bank.network.initial_bounds()
    return [*inner, (weight[0], 0.0), (bias[0], 0.0)]


def lift_new_classes(bank: Bank, levels: Tensor, new: int) -> None:
    """Set the bias of the last outputs, one for each new class, to level k in expert k, (K,)."""
    assert not isinstance(bank, ValueBank)  # `build_bank` refuses new classes there
    bias = bank.biases[-1] if isinstance(bank, MLPBank) else bank.new_bias
    assert bias is not None
    with torch.no_grad():
        bias[..., -new:] = levels[:, None, None] / bank.scale


def fold_standardisation(bank: MLPBank, mean: Tensor, deviation: Tensor) -> None:
    """Fold the standardisation (x - mean) / deviation, each (K, 1, E), into the first layer."""
    with torch.no_grad():
        bank.weights[0].copy_(bank.weights[0] / deviation.transpose(1, 2))
        bank.biases[0].copy_(torch.baddbmm(bank.biases[0], -mean, bank.weights[0]))


def run_bank(bank: Bank, x: Tensor) -> Tensor:
    """Return the outputs of every expert for the same examples.

    Parameters
    ----------
    bank
        A bank of K experts.
    x
        Features of shape (N, E).

    Returns
    -------
    Tensor
        Outputs of shape (N, K, C), without gradients, on the device of the features.
    """
    first = next(bank.parameters())
    count, device = first.shape[0], first.device
    with torch.no_grad():
        moved = (rows.to(device) for rows in x.split(ROWS))
        outputs = [bank(rows.expand(count, *rows.shape)).transpose(0, 1).to(x.device) for rows in moved]
    return torch.cat(outputs).contiguous()


def split_bank(bank: Bank) -> list[dict[str, Tensor]]:
    """Return the tensors of every expert by name, one dict per expert; the inverse of `fill_bank`."""
    tensors = bank.state_dict()
    count = next(iter(tensors.values())).shape[0]
    return [{name: tensor[index].clone() for name, tensor in tensors.items()} for index in range(count)]


def fill_bank(bank: Bank, experts: Sequence[dict[str, Tensor]]) -> None:
    """Load experts that were saved one by one, in any floating-point precision, into a bank."""
    try:
        state = {
            name: torch.stack([expert[name].to(own.dtype) for expert in experts])
            for name, own in bank.state_dict().items()
        }
        bank.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise RedxError(MISFIT) from error


def load_bank(config: BankConfig, experts: Sequence[dict[str, Tensor]], base: Base) -> Bank:
    """Return a bank of saved experts; sizes in `config` that do not fit their tensors take no memory."""
    expected = expected_shapes(lambda: build_bank(config, 1, base))
    for expert in experts:
        for name, shape in expected.items():
            if name not in expert or expert[name].shape != shape[1:] or not expert[name].is_floating_point():
                raise RedxError(MISFIT)
    bank = build_bank(config, len(experts), base)
    fill_bank(bank, experts)
    return bank


def average_bank(bank: Bank) -> list[dict[str, Tensor]]:
    """Return one expert whose parameters are the mean over all experts, as `fill_bank` takes it."""
    return [{name: tensor.mean(0) for name, tensor in bank.state_dict().items()}]
