"""Simulated errors of a router: five kinds of noise with a level from 0 to 1.

A kind changes either the gates, before the rule turns them into weights, or the weights. Level 0 leaves every value
unchanged, bit for bit. All random draws come from the generator that the caller passes, for all examples at once, so
that they do not depend on the pieces that a record is read in.

A sweep yields the answers of a rule under every kind and level. Weights cost little. The product of weights and
residuals costs most, so each chunk of residuals is read once for many levels while it lies in the processor's cache.
Every product is the one that a single evaluation computes, so the answers are the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from redx.composition.parts import CHUNK, Parts, Record, in_pieces, predicted_classes
from redx.composition.rules import Rule, contributing, get_rule, mix
from redx.errors import RedxError
from redx.registry import Registry
from redx.seeding import generator

CACHED = 2**18  # values of N·K·C that stay in the processor's cache while all levels are applied to them
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

    name: str = ""
    on: Literal["gates", "weights"] = "weights"
    reaches_unrouted: bool = False

    @property
    def about(self) -> str:
        """What the noise does, in one line: the first line of the docstring."""
        return (type(self).__doc__ or "").strip().partition("\n")[0]

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


class NoiseRegistry(Registry[Noise]):
    """The kinds of noise by name; what is registered may be a noise or a class of noises."""

    def register(self, name: str, entry: Any = None) -> Any:
        """Add a kind of noise under a name; without it, return a decorator."""
        if entry is None:
            return lambda decorated: self.register(name, decorated)
        noise = entry() if isinstance(entry, type) else entry
        if not isinstance(noise, Noise):
            raise RedxError(f"The noise {name!r} is {type(noise).__name__}; derive a class from redx.Noise.")
        super().register(name, noise)
        noise.name = name
        return entry


NOISES = NoiseRegistry("noise")
for _noise in (SwapNoise(), BlurNoise(), JitterNoise(), DropNoise(), PermuteNoise()):  # in the order of tables
    NOISES.register(_noise.name, _noise)


def get_noise(noise: Noise | str) -> Noise:
    """Return the kind of noise of this name, or the noise itself.

    Examples
    --------
    >>> get_noise("jitter").on
    'gates'
    """
    return noise if isinstance(noise, Noise) else NOISES[noise]


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


def noisy_weights(
    rule: Rule | str,
    parts: Parts,
    kind: Noise | str | None = None,
    level: float = 0.0,
    draw: Generator | None = None,
) -> Tensor:
    """Return the weights of a rule under routing noise.

    Parameters
    ----------
    rule, parts
        The rule that gives the weights, and the record of N examples and K experts.
    kind
        The kind of noise; None for no noise. A rule without a router is changed only by `drop`.
    level
        Strength of the noise, from 0 to 1.
    draw
        Source of random draws; by default a generator that depends only on the kind.

    Returns
    -------
    Tensor
        Weights of shape (N, K).

    Examples
    --------
    >>> domains = torch.tensor([0])
    >>> parts = Parts(torch.zeros(1, 2), torch.zeros(1, 2, 2), torch.zeros(1, 2), domains=domains)
    >>> noisy_weights("red-oracle", parts, "blur", level=0.5)
    tensor([[0.7500, 0.2500]])
    """
    rule = get_rule(rule)
    kind = None if kind is None else get_noise(kind)
    if kind is None or not _is_reached(rule, kind):
        return rule.weights(parts)
    check_level(level)
    draw = draw or generator(0, "noise", kind.name)
    if kind.on == "weights":
        return kind(rule.weights(parts), level, draw, simplex=rule.adversary == "simplex")
    return rule.weights(parts.with_gates(kind(parts.gates, level, draw)))


def _is_reached(rule: Rule, kind: Noise) -> bool:
    """Return whether a kind of noise can change the weights of a rule."""
    return bool(rule.adversary) and (rule.routed or kind.reaches_unrouted)


class NoiseSweep:
    """The answers of one rule under every kind and level of noise, collected piece by piece.

    Parameters
    ----------
    rule
        The rule that composes base and experts.
    gates, weights
        Gates and the rule's weights of all examples, (N, K) each, for draws do not depend on pieces.
    kinds, levels
        Kinds and levels of noise.
    seed
        Decides the random draws.
    several
        Whether the record comes in several pieces: then gates and weights with noise are drawn once and kept.
    """

    def __init__(
        self,
        rule: Rule,
        gates: Tensor,
        weights: Tensor,
        kinds: Sequence[Noise | str],
        levels: Sequence[float],
        seed: int,
        several: bool = True,
    ) -> None:
        self.rule, self.gates, self.weights = rule, gates, weights
        self.kinds, self.levels, self.seed, self.several = tuple(map(get_noise, kinds)), tuple(levels), seed, several
        for level in levels:
            check_level(level)
        self._drawn: dict[tuple[str, float], Tensor] = {}
        self._answers: dict[tuple[str, float], list[Tensor]] = {
            (kind.name, level): [] for kind in self.kinds for level in levels
        }

    def update(self, rows: slice, parts: Parts, clean: Tensor) -> None:
        """Add a piece: its rows among all examples, its record, and the rule's answers without noise.

        The latter are also the answers at level 0, and those of rules that a kind of noise cannot reach.
        """
        changed = [level for level in self.levels if level != 0]
        group = max(1, CHUNK // max(1, self.gates.numel()))  # weights of so many levels fit into memory
        for kind in self.kinds:
            answers = dict.fromkeys(self.levels, clean)
            if _is_reached(self.rule, kind):
                for start in range(0, len(changed), group):
                    some = changed[start : start + group]
                    weights = [self._piece_weights(kind, level, rows, parts) for level in some]
                    answers |= dict(zip(some, _answers(self.rule, parts, weights), strict=True))
            for level in self.levels:
                self._answers[kind.name, level].append(answers[level])

    def answers(self) -> Iterator[tuple[Noise, list[Tensor]]]:
        """Yield every kind with its answers by level, (N,) each."""
        for kind in self.kinds:
            yield kind, [torch.cat(self._answers[kind.name, level]) for level in self.levels]

    def _piece_weights(self, kind: Noise, level: float, rows: slice, parts: Parts) -> Tensor:
        """Return the weights of a piece under noise."""
        values = self._drawn.get((kind.name, level))
        if values is None:
            draw = generator(self.seed, "noise", kind.name, level)
            if kind.on == "weights":
                values = kind(self.weights, level, draw, simplex=self.rule.adversary == "simplex")
            else:
                values = kind(self.gates, level, draw)
            if self.several:
                self._drawn[kind.name, level] = values
        return values[rows] if kind.on == "weights" else self.rule.weights(parts.with_gates(values[rows]))


def _answers(rule: Rule, parts: Parts, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the answers of a rule under several sets of weights, (N, K) each."""
    answers = [torch.empty(len(parts), dtype=torch.int64) for _ in weights]
    for rows, part in parts.chunks(CACHED):
        base, residuals = rule.read(part.base), rule.read(contributing(rule, part).residuals)
        for target, weight in zip(answers, weights, strict=True):
            target[rows] = predicted_classes(mix(rule, base, residuals, weight[rows]))
    return answers


def noise_sweep(
    rule: Rule | str,
    record: Record,
    clean: Tensor,
    kinds: Sequence[Noise | str],
    levels: Sequence[float],
    seed: int,
) -> Iterator[tuple[Noise, list[Tensor]]]:
    """Yield every kind of noise with the answers of a rule at every level.

    Parameters
    ----------
    rule, record
        The rule that composes base and experts, and the record of N examples and K experts.
    clean
        The rule's answers without noise, (N,). They are also the answers at level 0, and those of rules that a kind of
        noise cannot reach.
    kinds, levels
        Kinds and levels of noise.
    seed
        Decides the random draws.

    Yields
    ------
    tuple of Noise and list of Tensor
        The kind, and its answers by level, (N,) each.

    Examples
    --------
    >>> parts = Parts(torch.zeros(1, 2), torch.eye(2)[None], torch.tensor([[9.0, -9.0]]))
    >>> sweep = noise_sweep("red", parts, torch.tensor([0]), ["swap"], [0.0, 1.0], seed=0)
    >>> [answers for _, answers in sweep]
    [[tensor([0]), tensor([1])]]
    """
    rule, pieces = get_rule(rule), in_pieces(record)
    whole = isinstance(record, Parts)
    gates = record.gates if whole else torch.cat([piece.gates for piece in pieces])
    weights = rule.weights(record) if whole else torch.cat([rule.weights(piece) for piece in pieces])
    sweep = NoiseSweep(rule, gates, weights, kinds, levels, seed, several=not whole)
    for rows, piece in pieces.rows():
        sweep.update(rows, piece, clean[rows])
    yield from sweep.answers()
