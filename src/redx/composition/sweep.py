"""Noise sweeps: the answers of a rule under every kind and level of routing noise, from one pass over the residuals.

Weights are drawn for all examples at once and cost little. The product of weights and residuals costs most, so each
chunk of residuals is read once for many levels while it lies in the processor's cache. Every product is the one that a
single evaluation computes, so the answers are the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Generator, Tensor

from redx.composition import noise
from redx.composition.noise import Noise
from redx.composition.parts import CHUNK, Parts, predicted_classes
from redx.composition.rules import Rule, contributing, mix
from redx.seeding import generator

CACHED = 2**18  # values of N·K·C that stay in the processor's cache while all levels are applied to them


def noisy_weights(
    rule: Rule, parts: Parts, kind: Noise | None = None, level: float = 0.0, draw: Generator | None = None
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
    >>> import torch
    >>> from redx.composition.rules import get_rule
    >>> parts = Parts(torch.zeros(1, 2), torch.zeros(1, 2, 2), torch.zeros(1, 2), *[torch.zeros(1).long()] * 2)
    >>> noisy_weights(get_rule("red-oracle"), parts, noise.get_noise("blur"), level=0.5)
    tensor([[0.7500, 0.2500]])
    """
    if kind is None or not _is_reached(rule, kind):
        return rule.weights(parts)
    noise.check_level(level)
    draw = draw or generator(0, "noise", kind.name)
    if kind.on == "weights":
        return kind(rule.weights(parts), level, draw, simplex=rule.adversary == "simplex")
    gates = kind(parts.gates, level, draw)
    return rule.weights(replace(parts, gates=gates))


def _is_reached(rule: Rule, kind: Noise) -> bool:
    """Return whether a kind of noise can change the weights of a rule."""
    return bool(rule.adversary) and (rule.routed or kind.reaches_unrouted)


def noise_sweep(
    rule: Rule, parts: Parts, clean: Tensor, kinds: Sequence[Noise], levels: Sequence[float], seed: int
) -> Iterator[tuple[Noise, list[Tensor]]]:
    """Yield every kind of noise with the answers of a rule at every level.

    Parameters
    ----------
    rule, parts
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
    >>> import torch
    >>> from redx.composition.rules import get_rule
    >>> parts = Parts(torch.zeros(1, 2), torch.eye(2)[None], torch.tensor([[9.0, -9.0]]), *[torch.zeros(1).long()] * 2)
    >>> sweep = noise_sweep(get_rule("red"), parts, torch.tensor([0]), [noise.get_noise("swap")], [0.0, 1.0], seed=0)
    >>> [answers for _, answers in sweep]
    [[tensor([0]), tensor([1])]]
    """
    changed = [level for level in levels if level != 0]
    group = max(1, CHUNK // max(1, parts.gates.numel()))  # weights of so many levels fit into memory
    for kind in kinds:
        answers = dict.fromkeys(levels, clean)
        if _is_reached(rule, kind):
            for start in range(0, len(changed), group):
                some = changed[start : start + group]
                weights = [
                    noisy_weights(rule, parts, kind, level, generator(seed, "noise", kind.name, level))
                    for level in some
                ]
                answers |= dict(zip(some, _answers(rule, parts, weights), strict=True))
        yield kind, [answers[level] for level in levels]


def _answers(rule: Rule, parts: Parts, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the answers of a rule under several sets of weights, (N, K) each."""
    answers = [parts.labels.clone() for _ in weights]
    for rows, part in parts.chunks(CACHED):
        base, residuals = rule.read(part.base), rule.read(contributing(rule, part).residuals)
        for target, weight in zip(answers, weights, strict=True):
            target[rows] = predicted_classes(mix(rule, base, residuals, weight[rows]))
    return answers
