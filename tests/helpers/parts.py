"""Random `Parts` for tests: drawn by a generator, or by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from redx.composition.parts import Parts
from redx.seeding import generator


def draw_parts(
    examples: int = 64, experts: int = 5, classes: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Parts:
    """Return parts with Gaussian tensors; with one class a regression, whose labels are whole numbers."""
    source = generator(seed, "parts", examples, experts, classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)

    return Parts(
        base=2 * normal(examples, classes),
        residuals=2 * normal(examples, experts, classes),
        gates=2 * normal(examples, experts),
        labels=torch.randint(max(2, classes), (examples,), generator=source),
        domains=torch.randint(max(1, experts), (examples,), generator=source),
    )


def write_parts(path: Path, parts: Parts, confidences: bool = False) -> Path:
    """Write parts as an .npz or safetensors file, such as a user would write; with confidences on demand."""
    tensors = parts.tensors() | ({"confidences": parts.gates + 1} if confidences else {})
    if path.suffix == ".npz":
        numpy.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})  # pyright: ignore[reportArgumentType]
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def reorder_experts(parts: Parts, order: list[int]) -> Parts:
    """Return the same examples with the experts in another order and the domains renamed to match."""
    return replace(parts.keep(order), domains=torch.tensor(order).argsort()[parts.domains])


@st.composite
def any_parts(draw: st.DrawFn, classes: int = 6, experts: int = 6) -> Parts:
    """Draw small parts of any shape with any finite values, with ties, zeros and extremes among them."""
    n, k, c = draw(st.integers(1, 4)), draw(st.integers(1, experts)), draw(st.integers(2, classes))
    value = st.floats(-1e3, 1e3, allow_subnormal=False)

    def tensor(*shape: int) -> Tensor:
        count = int(torch.tensor(shape).prod())
        return torch.tensor(draw(st.lists(value, min_size=count, max_size=count)), dtype=torch.float64).view(shape)

    def index(high: int) -> Tensor:
        return torch.tensor(draw(st.lists(st.integers(0, high - 1), min_size=n, max_size=n)))

    return Parts(tensor(n, c), tensor(n, k, c), tensor(n, k), index(c), index(k))
