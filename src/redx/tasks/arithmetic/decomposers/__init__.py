"""Decomposers, which take sentences to programs, by name and behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer
from redx.tasks.arithmetic.program import Program

if TYPE_CHECKING:
    from torch import Tensor


class Decomposer(Protocol):
    """Takes sentences to programs."""

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]:
        """Return a program for every text, or the error of a text that cannot be read."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the trained tensors by name, to be saved."""
        ...


def train_decomposer(name: str, seed: int, backbone: str) -> Decomposer:
    """Return a newly trained decomposer: `pointer`, or `lm` on this backbone."""
    if name == "pointer":
        return PointerDecomposer.train(seed)
    from redx.tasks.arithmetic.decomposers.language_model import LMDecomposer

    return LMDecomposer.train(seed, backbone)


def restore_decomposer(name: str, tensors: dict[str, Tensor], backbone: str) -> Decomposer:
    """Return the decomposer whose `tensors` these are."""
    if name == "pointer":
        return PointerDecomposer.from_tensors(tensors)
    from redx.tasks.arithmetic.decomposers.language_model import LMDecomposer

    return LMDecomposer.from_tensors(tensors, backbone)
