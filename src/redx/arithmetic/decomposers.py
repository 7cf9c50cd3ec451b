"""The decomposers by name, behind one small interface: texts to programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from redx.arithmetic.pointer import Pointer
from redx.arithmetic.program import Program
from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


class Decomposer(Protocol):
    """Reads sentences; what cannot be read gives its refusal, in its place."""

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]: ...

    def tensors(self) -> dict[str, Tensor]: ...


def train(name: str, seed: int, backbone: str) -> Decomposer:
    """Train a decomposer from its seed."""
    if name == "pointer":
        return Pointer.train(seed)
    from redx.arithmetic.generator import Generator

    return Generator.train(seed, backbone)


def restore(name: str, tensors: dict[str, Tensor], backbone: str) -> Decomposer:
    """A trained decomposer from its file."""
    if name == "pointer":
        return Pointer.of(tensors)
    from redx.arithmetic.generator import Generator

    return Generator.of(tensors, backbone)
