"""A base that codes values of 25 classes, and the features of examples for it."""

from __future__ import annotations

import torch
from torch import Tensor

from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.models.values import classifier_of_values, code_values
from redx.seeding import generator

CLASSES, WAVES, FURTHER = 25, 8, 5


def value_base() -> Base:
    """Return a base that codes values of 25 classes, whose features are standardised."""
    draw = generator(0, "bus")
    mean, scale = (
        torch.randn(2 * WAVES + FURTHER, generator=draw),
        torch.rand(2 * WAVES + FURTHER, generator=draw) + 0.5,
    )
    weight = classifier_of_values(CLASSES, WAVES)
    return Base(IdentityEncoder(), weight * scale[: 2 * WAVES, None], mean[: 2 * WAVES] @ weight, mean, scale)


def features_of(values: Tensor) -> Tensor:
    """Return what experts read of examples whose base's values are these, (N,) to (N, E)."""
    base = value_base()
    further = torch.randn(len(values), FURTHER, generator=generator(1, "further"))
    return (torch.cat([code_values(values, WAVES), further], 1) - base.mean) / base.scale
