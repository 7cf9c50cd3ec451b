"""What a router can get wrong: five kinds of noise, each with a level in [0, 1].

A kind works either on the gates (before the rule turns them into weights) or on the weights. Level 0 is the identity,
bit for bit, and all draws come from the generator that is passed in. A new kind is one small class in this file.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from redx.errors import RedxError

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


class Noise:
    """A kind of routing noise; a subclass sets what differs and changes gates or weights of shape (N, K).

    Attributes
    ----------
    name
        How users write it.
    on
        What it changes: the gates, before the rule turns them into weights, or the weights.
    reaches_unrouted
        Whether it also changes the weights of rules that no router chooses.
    """

    name: ClassVar[str]
    on: ClassVar[Literal["gates", "weights"]] = "weights"
    reaches_unrouted: ClassVar[bool] = False

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        """Return gates or weights, (N, K), with noise of this level; weights may have to stay on the simplex."""
        raise NotImplementedError


class SwapNoise(Noise):
    """With probability `level` the weights become the one-hot of an expert other than the router's first choice."""

    name = "swap"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        examples, experts = values.shape
        hit = torch.rand(examples, generator=generator) < level  # (N,)
        if experts < 2:
            return values
        step = torch.randint(1, experts, (examples,), generator=generator)
        wrong = (values.argmax(-1) + step) % experts
        return torch.where(hit[:, None], torch.nn.functional.one_hot(wrong, experts).to(values.dtype), values)


class BlurNoise(Noise):
    """The router hesitates: `(1 - level) w + level / K`."""

    name = "blur"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        return (1 - level) * values + level / max(1, values.shape[1])


class JitterNoise(Noise):
    """Gaussian noise on the gates, sigma = 4 · level · their standard deviation."""

    name, on = "jitter", "gates"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
        return values + 4 * level * values.std(correction=0) * drawn if values.numel() else values


class DropNoise(Noise):
    """Each expert is missing with probability `level`, the rest is renormalised; none left: the base."""

    name, reaches_unrouted = "drop", True

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        missing = torch.rand(values.shape, generator=generator) < level  # (N, K)
        left = values.masked_fill(missing, 0)
        if not simplex:
            return left
        total = left.sum(-1, keepdim=True)
        scaled = left / torch.where(total > 0, total, 1)
        return torch.where(missing.any(-1, keepdim=True), scaled, values)


class PermuteNoise(Noise):
    """A stale router: the gate columns of a share `level` of the experts are deranged, drawn anew for every example.

    One column alone cannot be deranged, so the number of columns is drawn from {0, 2, 3, …} with mean `level` · K.
    """

    name, on = "permute", "gates"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        examples, experts = values.shape
        chance = torch.rand(examples, generator=generator)
        order = torch.rand(examples, experts, generator=generator).argsort(-1)  # (N, K) who is drawn first
        if experts < 2:
            return values
        mean = level * experts
        whole = int(mean)
        few = torch.where(chance < mean / 2, 2, 0)
        count = few if mean < 2 else whole + (chance < mean - whole).long()  # (N,)
        place = torch.arange(experts).expand(examples, experts)
        following = torch.where(place + 1 < count[:, None], place + 1, torch.zeros_like(place))
        source = torch.where(place < count[:, None], following, place)  # a cycle through the first `count`
        return torch.empty_like(values).scatter_(1, order, values.gather(1, order.gather(1, source)))


_ALL: tuple[Noise, ...] = (
    SwapNoise(),
    BlurNoise(),
    JitterNoise(),
    DropNoise(),
    PermuteNoise(),
)  # a new kind is listed here
NOISES = {noise.name: noise for noise in _ALL}


def get_noise(name: str) -> Noise:
    """The kind of noise of this name."""
    if name not in NOISES:
        raise RedxError(f"There is no noise {name!r}; choose one of {', '.join(NOISES)}.")
    return NOISES[name]


def check_level(level: float) -> float:
    """The level itself, if it is one."""
    if not 0 <= level <= 1:
        raise RedxError(f"A noise level lies between 0 and 1, not {level}; choose one such as 0.25.")
    return level
