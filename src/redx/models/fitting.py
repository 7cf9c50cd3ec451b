"""Whether tensors from a file fit a module, found out before the module takes any memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def expected_shapes(build: Callable[[], nn.Module]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a module by name; the module is built without memory for its values.

    Parameters
    ----------
    build
        Builds the module, with sizes that may come from a file.
    """
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}


def fits(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether these are exactly the tensors of a module, all of them floating-point numbers."""
    expected = expected_shapes(build)
    return expected == {name: tuple(tensor.shape) for name, tensor in tensors.items()} and all(
        tensor.is_floating_point() for tensor in tensors.values()
    )
