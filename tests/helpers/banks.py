"""Small banks of experts in double precision, each expert drawn from its own generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from redx.models.banks import MLPBank, initialise_bank
from redx.seeding import generator

INPUTS, CLASSES = 5, 3
SIZES = {"linear": (INPUTS, CLASSES), "mlp": (INPUTS, 8, 6, CLASSES)}


def generators(numbers: Sequence[int], purpose: str) -> list[Generator]:
    """Return a generator for each expert."""
    return [generator(number, purpose) for number in numbers]


def draw_bank(numbers: Sequence[int] = (0, 1, 2), shape: str = "mlp", **options: Any) -> MLPBank:
    """Return a bank of the experts with these numbers."""
    bank = MLPBank(len(numbers), SIZES[shape], **options).double()
    initialise_bank(bank, generators(numbers, "start"))
    return bank


def draw_inputs(count: int, purpose: str = "inputs") -> Tensor:
    """Return Gaussian features, (N, INPUTS)."""
    return torch.randn(count, INPUTS, generator=generator(0, purpose), dtype=torch.float64)
