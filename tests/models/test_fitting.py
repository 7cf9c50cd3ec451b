"""Tensors from a file are compared with a module that takes no memory."""

import torch
from torch import nn

from redx.models.fitting import expected_shapes, fits


def test_shapes_of_a_module_that_no_memory_could_hold() -> None:
    assert expected_shapes(lambda: nn.Linear(10**6, 10**6)) == {"weight": (10**6, 10**6), "bias": (10**6,)}


def test_only_exactly_the_right_tensors_fit() -> None:
    def build() -> nn.Module:
        return nn.Linear(3, 2)

    right = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    assert fits(build, right)
    assert not fits(build, {"weight": right["weight"]})
    assert not fits(build, right | {"more": torch.zeros(1)})
    assert not fits(build, right | {"bias": torch.zeros(3)})
    assert not fits(build, right | {"bias": torch.zeros(2, dtype=torch.long)})
