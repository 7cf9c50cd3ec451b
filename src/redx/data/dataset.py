"""What flows through the house: the data of a task, and `Parts`, the waist between training and everything after it.

Axis letters, fixed once and for all: N examples, D features, K experts, C classes, R bottleneck rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Examples of one split: inputs of any kind, the answer and the domain of each."""

    inputs: Tensor  # (N, ...)
    labels: Tensor  # (N,)
    domains: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, rows: Tensor) -> Split:
        return Split(self.inputs[rows], self.labels[rows], self.domains[rows])

    def digest(self) -> str:
        """A hash of the content, so that a run can say exactly what it was trained and tested on."""
        sha = hashlib.sha256()
        for tensor in (self.inputs, self.labels, self.domains):
            sha.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class Data:
    """A task's three splits and the names of what is in them."""

    train: Split
    validation: Split
    test: Split
    domains: tuple[str, ...]
    classes: tuple[str, ...]  # empty for a regression
    split: str  # "disjoint" or "random"
    seen_in_train: float  # share of test questions that also stand in train
    unit: float = 1.0  # regression: what one unit of the answer is in the network's output
    given_base: tuple[Tensor, Tensor] | None = None  # weight (D, C) and bias (C,) of a base that needs no training

    @property
    def outputs(self) -> int:
        return len(self.classes) or 1

    def domain_of_classes(self) -> list[int]:
        """The domain that each class belongs to; -1 where several domains have it, or none."""
        found: list[set[int]] = [set() for _ in self.classes]
        for domain in range(len(self.domains) if self.classes else 0):
            for label in self.train.labels[self.train.domains == domain].unique().tolist():
                found[label].add(domain)
        return [next(iter(places)) if len(places) == 1 else -1 for places in found]
