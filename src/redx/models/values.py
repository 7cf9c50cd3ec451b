"""Values coded as waves: how a base with the trunk `sum` turns the value of an answer into classes.

    h = (cos ω_j v, sin ω_j v) for j = 1..J,    W_c holds the same code for the value of every class

Classes are numbers in order, at equal distances. `argmax W_c h` rounds the value v to the nearest class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

VALUE_SPAN = 3.3  # distance between the values of the first and the last class: values are of about unit size
PERIOD = 1.3 * VALUE_SPAN  # of the slowest wave
HEIGHT = 2.0  # W_c is this multiple of the codes


def class_values(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the values of the classes in order, (C,).

    Examples
    --------
    >>> class_values(3)
    tensor([-1.1000,  0.0000,  1.1000])
    """
    return (torch.arange(count, device=device) - (count - 1) / 2) * class_distance(count)


def class_distance(count: int) -> float:
    """Return the distance between the values of neighbouring classes."""
    return VALUE_SPAN / count


def code_values(values: Tensor, waves: int) -> Tensor:
    """Return the code of values: (...) to (..., 2 J), first all cosines, then all sines.

    Examples
    --------
    >>> code_values(torch.zeros(1), 2)
    tensor([[1., 1., 0., 0.]])
    """
    angles = values[..., None] * torch.arange(1, waves + 1, device=values.device) * (2 * torch.pi / PERIOD)
    return torch.cat([angles.cos(), angles.sin()], -1)


def decode_values(code: Tensor) -> Tensor:
    """Return the values that codes were made of, (..., 2 J) to (...), as the angle of the slowest wave.

    Examples
    --------
    >>> decode_values(code_values(torch.tensor([0.5]), 2))
    tensor([0.5000])
    """
    return torch.atan2(code[..., code.shape[-1] // 2], code[..., 0]) * (PERIOD / math.tau)


def classifier_of_values(count: int, waves: int) -> Tensor:
    """Return the classifier W_c whose class c answers best at its own value, (2 J, C)."""
    return HEIGHT * code_values(class_values(count), waves).T
