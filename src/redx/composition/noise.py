"""Simulated errors of a router: five kinds of noise with a level from 0 to 1.

A kind changes either the gates, before the rule turns them into weights, or the weights. Level 0 leaves every value
unchanged, bit for bit. All random draws come from the generator that the caller passes.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from redx.errors import RedxError

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


class Noise:
    """A kind of routing noise; a subclass sets the attributes and implements the call.

    Attributes
    ----------
    name
        Name of the kind in settings and tables.
    on
        What the noise changes: the gates, before the rule turns them into weights, or the weights.
    reaches_unrouted
        Whether the noise also changes the weights of rules that use no router.

    Examples
    --------
    >>> class FadeNoise(Noise):
    ...     name = "fade"
    ...
    ...     def __call__(self, values, level, generator, simplex=True):
    ...         return (1 - level) * values
    >>> FadeNoise()(torch.ones(1, 2), 0.5, torch.Generator())
    tensor([[0.5000, 0.5000]])
    """

    name: ClassVar[str]
    on: ClassVar[Literal["gates", "weights"]] = "weights"
    reaches_unrouted: ClassVar[bool] = False

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        """Return gates or weights with noise.

        Parameters
        ----------
        values
            Gates or weights of shape (N, K).
        level
            Strength of the noise, from 0 (no change) to 1.
        generator
            Source of all random draws.
        simplex
            Whether changed weights are normalised so that they sum to one.

        Returns
        -------
        Tensor
            Gates or weights of shape (N, K).
        """
        raise NotImplementedError


class SwapNoise(Noise):
    """With probability `level`, one expert other than the router's first choice gets the whole weight.

    Examples
    --------
    >>> SwapNoise()(torch.tensor([[0.9, 0.1]]), 1.0, torch.Generator())
    tensor([[0., 1.]])
    """

    name = "swap"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        examples, experts = values.shape
        swapped = torch.rand(examples, generator=generator) < level  # (N,)
        if experts < 2:
            return values
        step = torch.randint(1, experts, (examples,), generator=generator)
        wrong = (values.argmax(-1) + step) % experts
        return torch.where(swapped[:, None], torch.nn.functional.one_hot(wrong, experts).to(values.dtype), values)


class BlurNoise(Noise):
    """The weights move towards equal weights: `(1 - level) w + level / K`.

    Examples
    --------
    >>> BlurNoise()(torch.tensor([[1.0, 0.0]]), 0.5, torch.Generator())
    tensor([[0.7500, 0.2500]])
    """

    name = "blur"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        return (1 - level) * values + level / max(1, values.shape[1])


class JitterNoise(Noise):
    """Gaussian noise is added to the gates; its standard deviation is 4 · level times that of the gates.

    Examples
    --------
    >>> gates = torch.tensor([[1.0, -1.0]])
    >>> noisy = JitterNoise()(gates, 0.25, torch.Generator().manual_seed(0))
    >>> noisy.shape, bool((noisy == gates).any())
    (torch.Size([1, 2]), False)
    """

    name, on = "jitter", "gates"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        drawn = torch.randn(values.shape, generator=generator, dtype=values.dtype)
        return values + 4 * level * values.std(correction=0) * drawn if values.numel() else values


class DropNoise(Noise):
    """Every expert is missing with probability `level`, the rest is normalised; without any, the base answers.

    Examples
    --------
    >>> DropNoise()(torch.tensor([[0.5, 0.5]]), 1.0, torch.Generator())
    tensor([[0., 0.]])
    """

    name, reaches_unrouted = "drop", True

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        missing = torch.rand(values.shape, generator=generator) < level  # (N, K)
        left = values.masked_fill(missing, 0)
        if not simplex:
            return left
        total = left.sum(-1, keepdim=True)
        normalised = left / torch.where(total > 0, total, 1)
        return torch.where(missing.any(-1, keepdim=True), normalised, values)


class PermuteNoise(Noise):
    """The gates of a share `level` of the experts are permuted and none keeps its own, separately for every example.

    A single gate cannot be permuted, so the number of gates is drawn from {0, 2, 3, …} with mean `level` · K.

    Examples
    --------
    >>> PermuteNoise()(torch.tensor([[3.0, 1.0]]), 1.0, torch.Generator())
    tensor([[1., 3.]])
    """

    name, on = "permute", "gates"

    def __call__(self, values: Tensor, level: float, generator: Generator, simplex: bool = True) -> Tensor:
        examples, experts = values.shape
        chance = torch.rand(examples, generator=generator)
        order = torch.rand(examples, experts, generator=generator).argsort(-1)  # (N, K), a random order of the experts
        if experts < 2:
            return values
        mean = level * experts
        whole = int(mean)
        two_or_none = torch.where(chance < mean / 2, 2, 0)
        count = two_or_none if mean < 2 else whole + (chance < mean - whole).long()  # (N,)
        rank = torch.arange(experts).expand(examples, experts)
        following = torch.where(rank + 1 < count[:, None], rank + 1, torch.zeros_like(rank))
        source = torch.where(rank < count[:, None], following, rank)  # a cycle through the first `count` ranks
        return torch.empty_like(values).scatter_(1, order, values.gather(1, order.gather(1, source)))


_ALL: tuple[Noise, ...] = (  # in the order of tables; a new kind is listed here
    SwapNoise(),
    BlurNoise(),
    JitterNoise(),
    DropNoise(),
    PermuteNoise(),
)
NOISES = {noise.name: noise for noise in _ALL}


def get_noise(name: str) -> Noise:
    """Return the kind of noise of this name.

    Parameters
    ----------
    name
        A key of `NOISES`.

    Returns
    -------
    Noise
        The kind of noise.

    Examples
    --------
    >>> get_noise("jitter").on
    'gates'
    """
    if name not in NOISES:
        raise RedxError(f"There is no noise {name!r}; choose one of {', '.join(NOISES)}.")
    return NOISES[name]


def check_level(level: float) -> float:
    """Return a noise level unchanged, or raise `RedxError` if it is outside [0, 1].

    Parameters
    ----------
    level
        The level to check.

    Returns
    -------
    float
        The same level.

    Examples
    --------
    >>> check_level(0.25)
    0.25
    """
    if not 0 <= level <= 1:
        raise RedxError(f"A noise level lies between 0 and 1, not {level}; choose one such as 0.25.")
    return level
