"""The data of a task as tensors: one split, and the three splits of a task.

Axis letters, here and in all other modules: N examples, D features, K experts, C classes, R rank of a low-rank expert.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    Parameters
    ----------
    inputs
        Inputs of any kind, one per row, (N, …).
    labels
        Class indices, or the targets of a regression, (N,).
    domains
        Domain indices, (N,).

    Examples
    --------
    >>> import torch
    >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    >>> len(split), len(split.only(split.domains == 0))
    (3, 2)
    """

    inputs: Tensor
    labels: Tensor
    domains: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, rows: Tensor) -> Split:
        """Return the split with these rows alone, given as indices or as a mask."""
        return Split(self.inputs[rows], self.labels[rows], self.domains[rows])

    def to(self, device: str) -> Split:
        """Return the same examples on another device."""
        return Split(self.inputs.to(device), self.labels.to(device), self.domains.to(device))

    def digest(self) -> str:
        """Return a hash of the content, by which a run records what it was trained and tested on."""
        sha = hashlib.sha256()
        for tensor in (self.inputs, self.labels, self.domains):
            sha.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class Data:
    """The three splits of a task, with the names of its domains and classes.

    Parameters
    ----------
    train
        Examples for training.
    validation
        Examples for early stopping and for calibration.
    test
        Examples for evaluation.
    domains
        Names of the domains; `Split.domains` indexes them.
    classes
        Names of the classes; `Split.labels` indexes them. Empty for a regression.
    split
        How the examples were divided: `disjoint` (no question is in two splits) or `random`.
    seen_in_train
        Share of the test questions that also occur in train.
    unit
        For a regression, the size of one unit of the answer in the network's output.
    given_base
        Weight (D, C) and bias (C,) of a base that needs no training, if the task has one.
    """

    train: Split
    validation: Split
    test: Split
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    split: str
    seen_in_train: float
    unit: float = 1.0
    given_base: tuple[Tensor, Tensor] | None = None

    @property
    def outputs(self) -> int:
        """The number of outputs C of a network for this data: one per class, or 1 for a regression."""
        return len(self.classes) or 1

    def domain_of_classes(self) -> list[int]:
        """Return the domain index of every class; -1 where train has the class in several domains or in none."""
        domains: list[set[int]] = [set() for _ in self.classes]
        for domain in range(len(self.domains) if self.classes else 0):
            for label in self.train.labels[self.train.domains == domain].unique().tolist():
                domains[label].add(domain)
        return [next(iter(indices)) if len(indices) == 1 else -1 for indices in domains]
