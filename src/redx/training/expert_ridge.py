"""Experts and ownership scores in closed form: a ridge regression for every expert, on random features.

    r_k minimises  mean over its own examples of |s · onehot(y) - start - r_k|² + a · the same mean over its anchors

and a penalty on its weights, where `start` is the base's logits under a residual expert and zero under a standalone
head. A network of one hidden layer keeps its random first layer, which all experts share; only the output layer is
solved for. The size s of the logits is that of the base's, by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from redx.config import BankConfig, BankId
from redx.data.dataset import Split
from redx.models.banks import MLPBank
from redx.models.base import Base
from redx.seeding import generator
from redx.training.closed_form import require_classes
from redx.training.datasets import ExpertData

PENALTIES = (0.03, 0.1, 0.3, 1.0)  # λ of an expert, chosen by the log-loss on examples that are left out in turn
OWNERSHIP_PENALTY = 0.03  # λ of an ownership score
SHIFT = 0.5  # standard deviation of the biases of the random layer
FACTORS = tuple(torch.logspace(-0.5, 1.5, 21).tolist())  # sizes of an ownership score
SIZE = 10.0  # of the logits of a standalone head of a base that answers nothing


def fit_experts(
    bank: MLPBank, config: BankConfig, datasets: Sequence[ExpertData], base: Base, seeds: Sequence[int], bank_id: BankId
) -> MLPBank:
    """Fit every expert of an untrained bank with one hidden layer, in place.

    Parameters
    ----------
    bank
        The bank, with one network for each dataset.
    config
        Its settings: the penalty, and with the anchor `truth` that an expert keeps the right answer, with `size` that
        it changes nothing outside its domain.
    datasets
        The data of each expert; inputs are features, (N, E).
    base
        The frozen base.
    seeds
        One for each dataset; it decides the random layer.
    bank_id
        Name of the bank, and whether its experts correct the base.

    Returns
    -------
    MLPBank
        The same bank.

    Raises
    ------
    RedxError
        If the task is a regression, which has no classes.
    """
    require_classes(bank_id, base)
    for k, (data, seed) in enumerate(zip(datasets, seeds, strict=True)):
        _draw_layer(bank, k, seed, f"{bank_id}")
        rows, weights = _weighed(data, config.anchor_weight if config.anchor != "none" else 0.0)
        logits = base.classify(rows.inputs).double()
        right = one_hot(rows.labels, base.outputs).double()
        targets = _size(logits, right) * right
        if bank_id.corrects_base:
            targets -= logits
            if config.anchor == "size":
                targets[len(data.own) :] = 0
        start = logits if bank_id.corrects_base else torch.zeros_like(logits)
        found = _solve(_hidden(bank, k, rows.inputs), targets, weights, PENALTIES)
        losses = [
            float(cross_entropy(start + left_out, rows.labels, reduction="none") @ weights) for _, left_out in found
        ]
        _put(bank, k, found[losses.index(min(losses))][0])
    return bank


def fit_scorers(bank: MLPBank, config: BankConfig, datasets: Sequence[ExpertData], seed: int) -> MLPBank:
    """Fit every expert's ownership score, its own domain against its anchors, in place.

    Parameters
    ----------
    bank
        An untrained bank of networks with one hidden layer and one output.
    config
        Its settings.
    datasets
        The data of each expert.
    seed
        Decides the random layer.
    """
    for k, data in enumerate(datasets):
        _draw_layer(bank, k, seed, "ownership")
        rows, weights = _weighed(data, 1.0)
        is_own = (torch.arange(len(rows)) < len(data.own)).double()[:, None]
        ((solution, left_out),) = _solve(_hidden(bank, k, rows.inputs), 2 * is_own - 1, weights, [OWNERSHIP_PENALTY])

        def loss(factor: float, found: Tensor = left_out, wanted: Tensor = is_own, by: Tensor = weights) -> float:
            return float(binary_cross_entropy_with_logits(factor * found, wanted, by[:, None]))

        _put(bank, k, min(FACTORS, key=loss) * solution)
    return bank


def _size(logits: Tensor, right: Tensor) -> float:
    """Return the size s of logits at which they are nearest to `s · onehot`, as a fit of the labels by the logits."""
    centred = logits - logits.mean(1, keepdim=True)
    along = float((centred * right).sum())
    return float(centred.square().sum()) / along if along > 0 else SIZE


def _draw_layer(bank: MLPBank, k: int, seed: int, name: str) -> None:
    """Draw the first layer of a network; it is the same for every expert, so that their parameters can be averaged."""
    draw = generator(seed, "random layer", name)
    _, inputs, hidden = bank.weights[0].shape
    with torch.no_grad():
        bank.weights[0][k] = torch.randn(inputs, hidden, generator=draw) * inputs**-0.5
        bank.biases[0][k, 0] = SHIFT * torch.randn(hidden, generator=draw)


def _weighed(data: ExpertData, anchor_weight: float) -> tuple[Split, Tensor]:
    """Return own examples, followed by the anchors, and the weight of each, (N,)."""
    count = len(data.own)
    if not anchor_weight or not len(data.anchors):
        return data.own, torch.full((count,), 1 / count).double()
    pairs = ((getattr(data.own, name), getattr(data.anchors, name)) for name in ("inputs", "labels", "domains"))
    weights = torch.full((count + len(data.anchors),), anchor_weight / len(data.anchors)).double()
    weights[:count] = 1 / count
    return Split(*(torch.cat(pair) for pair in pairs)), weights


def _hidden(bank: MLPBank, k: int, x: Tensor) -> Tensor:
    """Return the hidden layer of a network and a one, (N, H + 1), in double precision."""
    with torch.no_grad():
        inner = bank.activation(x.cpu() @ bank.weights[0][k] + bank.biases[0][k]).double()
    return torch.cat([inner, inner.new_ones(len(inner), 1)], 1)


def _solve(
    features: Tensor, targets: Tensor, weights: Tensor, penalties: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """Return by penalty the solution, (H + 1, C), and its outputs on each example if it were left out, (N, C).

    Parameters
    ----------
    features, targets, weights
        (N, H + 1), (N, C) and (N,).
    penalties
        Values of λ in units of the mean weighted square of a feature.
    """
    scaled = features * weights[:, None]
    gram, right = features.T @ scaled, scaled.T @ targets
    found = []
    for penalty in penalties:
        shifted = gram.clone()
        shifted.diagonal().add_(max(penalty * float(gram.diagonal().mean()), 1e-12))
        factor = torch.linalg.cholesky(shifted)
        solution = torch.cholesky_solve(right, factor)
        leverage = weights * torch.linalg.solve_triangular(factor, features.T, upper=False).square().sum(0)
        leverage = leverage.clamp(0, 0.999)[:, None]
        found.append((solution, (features @ solution - leverage * targets) / (1 - leverage)))
    return found


def _put(bank: MLPBank, k: int, solution: Tensor) -> None:
    with torch.no_grad():
        bank.weights[-1][k] = (solution[:-1] / bank.scale).float()
        bank.biases[-1][k, 0] = (solution[-1] / bank.scale).float()
