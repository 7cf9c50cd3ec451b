"""The decomposers by name, behind one small interface: texts to programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from redx.errors import RedxError
from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer
from redx.tasks.arithmetic.program import Program

if TYPE_CHECKING:
    from torch import Tensor


class Decomposer(Protocol):
    """Reads sentences; what cannot be read gives its refusal, in its place."""

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]: ...

    def tensors(self) -> dict[str, Tensor]: ...


def train_decomposer(name: str, seed: int, backbone: str) -> Decomposer:
    """Train a decomposer from its seed."""
    if name == "pointer":
        return PointerDecomposer.train(seed)
    from redx.tasks.arithmetic.decomposers.language_model import LMDecomposer

    return LMDecomposer.train(seed, backbone)


def restore_decomposer(name: str, tensors: dict[str, Tensor], backbone: str) -> Decomposer:
    """A trained decomposer from its file."""
    if name == "pointer":
        return PointerDecomposer.from_tensors(tensors)
    from redx.tasks.arithmetic.decomposers.language_model import LMDecomposer

    return LMDecomposer.from_tensors(tensors, backbone)
