"""The fixed map from features to those of a ridge head: the features themselves and random ones, decided by a base.

A ridge head on few random features is better when their directions look where the classes differ. So directions have
more variance in the span of the base's classifier: each is the sum of a plain random direction and a random combination
of the classifier's columns. The base is trained on the shared examples, which everybody knows, and its hash belongs to
all statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, pad

from redx.config import StatisticsConfig, StrictConfig
from redx.models.base import Base
from redx.seeding import generator

WIDEST = 1200  # features that the map keeps as they are; of more it takes random features alone, twice as many
LARGEST = 2**14  # outputs M of the map of a file from a stranger


@dataclass(frozen=True)
class FeatureMap:
    """The fixed map φ from standardised features h, (N, E), to (N, M): `[h, 1, relu(h P + p)]`.

    Attributes
    ----------
    width
        The number E of features.
    size
        The number of random features `relu(h P + p)`, P normal with variance 1/E.
    seed
        Decides P.
    unit
        Whether every h is first scaled to the length √E.
    linear
        Whether h itself is part of φ(h).
    guided
        The variance that P gains by dimension in the span of the base's classifier, in units of its variance elsewhere.
    shift
        The standard deviation of p, normal too.
    guide
        The classifier, (E, C), where it is known; maps are compared without it.

    Examples
    --------
    >>> FeatureMap(width=3, size=5)(torch.zeros(2, 3)).shape, FeatureMap(width=3, size=0)(torch.zeros(2, 3)).shape
    (torch.Size([2, 9]), torch.Size([2, 4]))
    """

    width: int
    size: int
    seed: int = 0
    unit: bool = False
    linear: bool = True
    guided: float = 0.0
    shift: float = 0.0
    guide: Tensor | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def create(config: StatisticsConfig, base: Base) -> FeatureMap:
        """Return the map that settings ask for, on the features of a base."""
        linear = base.width <= WIDEST
        size = config.size if linear else 2 * config.size
        settings = MapSettings(
            width=base.width,
            size=size,
            seed=config.seed,
            unit=config.unit,
            linear=linear,
            guided=config.guided,
            shift=config.shift,
        )
        return settings.on(base)

    @property
    def outputs(self) -> int:
        """M, the number of outputs."""
        return self.plain + self.size

    @property
    def plain(self) -> int:
        """The number of outputs before the random features: h, where it is among them, and a one."""
        return self.linear * self.width + 1

    def settings(self) -> dict[str, Any]:
        """Return what two equal maps have in common, to be saved."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}

    @cached_property
    def projection(self) -> Tensor:
        """P, (E, size), as the seed and the base decide it."""
        draw = generator(self.seed, "feature map", self.size)
        directions = torch.randn(self.width, self.size, generator=draw)
        if self.guided:
            assert self.guide is not None  # maps of files are completed by the model that reads them
            rank = min(self.guide.shape)
            scaled = self.guide * (self.guided * rank / self.guide.square().sum().clamp_min(1e-12)).sqrt()
            directions = directions + scaled @ torch.randn(self.guide.shape[1], self.size, generator=draw)
            directions = directions * (self.width / (self.width + self.guided * rank)) ** 0.5
        return directions * self.width**-0.5

    @cached_property
    def shifts(self) -> Tensor:
        """p, (size,), as the seed decides it."""
        return self.shift * torch.randn(self.size, generator=generator(self.seed, "feature map shifts", self.size))

    def __call__(self, h: Tensor, projection: Tensor | None = None) -> Tensor:
        """Return φ(h), (N, E) to (N, M); the projection may be given in another precision or on another device."""
        drawn = self.projection if projection is None else projection
        h = normalize(h, dim=-1) * self.width**0.5 if self.unit else h
        product = h @ drawn.to(h.device, h.dtype)
        ones, random = (
            torch.ones_like(h[:, :1]),
            torch.relu(product + self.shifts.to(product) if self.shift else product),
        )
        return torch.cat([h, ones, random] if self.linear else [ones, random], -1)


class MapSettings(StrictConfig):
    """What a file says of the feature map of its tensors."""

    width: int = Field(gt=0, le=2**16)
    size: int = Field(ge=0, le=LARGEST)
    seed: int
    unit: bool
    linear: bool
    guided: float = Field(ge=0, le=1000)
    shift: float = Field(default=0.0, ge=0, le=100)

    @property
    def map(self) -> FeatureMap:
        """The feature map that is described, which can be compared and not applied where the base guides it."""
        return FeatureMap(self.width, self.size, self.seed, self.unit, self.linear, self.guided, self.shift)

    def on(self, base: Base) -> FeatureMap:
        """Return the feature map that is described, on the features of a base."""
        guide = pad(base.weight.float(), (0, 0, 0, base.width - len(base.weight)))
        return FeatureMap(self.width, self.size, self.seed, self.unit, self.linear, self.guided, self.shift, guide)
