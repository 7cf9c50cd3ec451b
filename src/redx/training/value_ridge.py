"""Experts that predict a value, fitted in closed form: a ridge regression for every expert.

    g_k minimises  mean over its own examples of (v + g_k(x) - value)² + a · the same mean over its anchors + λ |w_k|²

The regression starts from the base's value v, so that a large λ keeps the base. The solution is exact, whereas
gradients need many steps here, because the features of a sum differ little in many directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redx.config import BankConfig
from redx.data.dataset import Split
from redx.models.banks import MLPBank
from redx.models.value_bank import ValueBank
from redx.models.values import class_values
from redx.training.datasets import ExpertData

ROWS = 8192  # examples that are in memory in double precision at once


def fit_values(bank: ValueBank, config: BankConfig, datasets: Sequence[ExpertData]) -> ValueBank:
    """Fit every expert of an untrained bank of linear networks, in place.

    Parameters
    ----------
    bank
        The bank, with one linear network for each dataset.
    config
        Its settings: the penalty λ, and what is asked of an expert outside its domain. With the anchor `truth` it is
        the true value, with `size` the value of the base.
    datasets
        The data of each expert; inputs are features, (N, E).

    Returns
    -------
    ValueBank
        The same bank.
    """
    assert isinstance(bank.network, MLPBank)
    (weights,), (biases,) = bank.network.weights, bank.network.biases
    with torch.no_grad():
        for k, data in enumerate(datasets):
            parts = [(data.own, 1.0, False)]
            if config.anchor != "none" and len(data.anchors):
                parts.append((data.anchors, config.anchor_weight, config.anchor == "size"))
            solution = solve_ridge(_normal_equations(bank, parts), config.penalty) / bank.network.scale
            weights[k, :, 0], biases[k, 0, 0] = solution[:-1].to(weights), solution[-1].to(biases)
    return bank


def solve_ridge(equations: tuple[Tensor, Tensor], penalty: float) -> Tensor:
    """Return the solution of normal equations, (E + 1, E + 1) and (E + 1,), whose last unknown has no penalty."""
    gram, right = equations
    shifted = gram.clone()
    shifted.diagonal()[:-1] += max(penalty, 1e-12)
    return torch.cholesky_solve(right[:, None], torch.linalg.cholesky(shifted))[:, 0]


def _normal_equations(bank: ValueBank, parts: Sequence[tuple[Split, float, bool]]) -> tuple[Tensor, Tensor]:
    """Return the normal equations of parts of the data, each with its weight and whether the base's value is kept."""
    size = parts[0][0].inputs.shape[1] + 1
    gram, right = torch.zeros(size, size).double(), torch.zeros(size).double()
    values = class_values(bank.classifier.shape[1])
    for split, weight, keeps in parts:
        for x, labels in zip(split.inputs.cpu().split(ROWS), split.labels.cpu().split(ROWS), strict=True):
            rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
            wanted = torch.zeros(len(x)) if keeps else values[labels] - bank.base_values(x)
            gram += (weight / len(split)) * (rows.T @ rows)
            right += (weight / len(split)) * (rows.T @ wanted.double())
    return gram, right
