"""Tensors in Ray's object store: stored as arrays, which workers read without a copy."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


def register_tensors() -> None:
    """Let Ray store the tensors of this process as arrays; otherwise each would be copied three times."""
    import ray.util

    ray.util.register_serializer(Tensor, serializer=to_array, deserializer=to_tensor)


def to_array(tensor: Tensor) -> tuple[Any, torch.dtype]:
    """Return a tensor as an array and its type; types that numpy lacks become bytes of the same size."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype in (torch.bfloat16,):
        return tensor.view(torch.int16).numpy(), tensor.dtype
    return tensor.numpy(), tensor.dtype


def to_tensor(stored: tuple[Any, torch.dtype]) -> Tensor:
    """Return the tensor that `to_array` described; it must not be written to, for it lies in shared memory."""
    array, dtype = stored
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
