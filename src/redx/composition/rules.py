"""The rules that put experts together: `scores = [base] + Σ_k w_k · read(residual_k)`.

Rules differ only in the weights `w`, in whether the base counts, in which form of bank they read, and (for `uniform`)
in reading probabilities instead of logits. Where all weights of an example are zero, the answer is the base's.
A new rule is one small class in this file; it is found by its `name`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from redx.composition.parts import Parts
from redx.errors import RedxError

Form = Literal["residual", "standalone", "pooled", "averaged"]
Region = Literal["simplex", "box"]  # weights that sum to one, or each free in [0, 1]


class Rule(Protocol):
    """What a rule must say about itself."""

    name: ClassVar[str]
    form: ClassVar[Form]  # the form of bank it reads
    keeps_base: ClassVar[bool]  # whether the base's logits count
    routed: ClassVar[bool]  # whether somebody chooses the weights, so that routing noise can reach them
    adversary: ClassVar[Region | None]  # where wrong weights could lie; None where no expert can be misused

    def weights(self, parts: Parts) -> Tensor: ...  # (N, K)

    def read(self, logits: Tensor) -> Tensor: ...  # what is mixed: logits themselves, or probabilities


def as_logits(logits: Tensor) -> Tensor:
    return logits


def as_probabilities(logits: Tensor) -> Tensor:
    """Probabilities of classes; the output of a regression (C = 1) stays what it is."""
    return logits if logits.shape[-1] == 1 else logits.softmax(-1)


def softmax_of_gates(parts: Parts) -> Tensor:
    return parts.gates.softmax(-1)


def true_domain(parts: Parts) -> Tensor:
    """One-hot of the domain; an example whose domain has no expert here gets none."""
    experts = torch.arange(parts.experts, device=parts.domains.device)
    return (parts.domains[:, None] == experts).to(parts.base.dtype)


class BaseRule:
    """The base alone: what every other rule must not fall below."""

    name, form = "base", "residual"
    keeps_base, routed, adversary = True, False, None
    read = staticmethod(as_logits)

    def weights(self, parts: Parts) -> Tensor:
        return torch.zeros_like(parts.gates)


class RedRule:
    """The base plus the experts' corrections, mixed by the router."""

    name, form = "red", "residual"
    keeps_base, routed, adversary = True, True, "simplex"
    read = staticmethod(as_logits)
    weights = staticmethod(softmax_of_gates)


class FixedRule:
    """The base plus the mean correction of all experts."""

    name, form = "fixed", "residual"
    keeps_base, routed, adversary = True, False, "simplex"
    read = staticmethod(as_logits)

    def weights(self, parts: Parts) -> Tensor:
        return torch.full_like(parts.gates, 1 / max(1, parts.experts))


class SumRule:
    """The base plus every correction in full: no router at all."""

    name, form = "sum", "residual"
    keeps_base, routed, adversary = True, False, "box"
    read = staticmethod(as_logits)

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class RedOracleRule:
    """The base plus the correction of the expert that owns the example."""

    name, form = "red-oracle", "residual"
    keeps_base, routed, adversary = True, True, "simplex"
    read = staticmethod(as_logits)
    weights = staticmethod(true_domain)


class MoeRule:
    """Standalone heads, their logits mixed by the router: the classical mixture of experts."""

    name, form = "moe", "standalone"
    keeps_base, routed, adversary = False, True, "simplex"
    read = staticmethod(as_logits)
    weights = staticmethod(softmax_of_gates)


class UniformRule:
    """Standalone heads, their probabilities averaged."""

    name, form = "uniform", "standalone"
    keeps_base, routed, adversary = False, False, "simplex"
    read = staticmethod(as_probabilities)
    weights = FixedRule.weights


class OracleRule:
    """The standalone head that owns the example: what perfect routing would give."""

    name, form = "oracle", "standalone"
    keeps_base, routed, adversary = False, True, "simplex"
    read = staticmethod(as_logits)
    weights = staticmethod(true_domain)


class GlobalRule:
    """One head trained on all data pooled: the non-modular reference, a bank of a single expert."""

    name, form = "global", "pooled"
    keeps_base, routed, adversary = False, False, None
    read = staticmethod(as_logits)
    weights = SumRule.weights


class AverageRule:
    """One head whose parameters are the mean of the experts' parameters, a bank of a single expert."""

    name, form = "average", "averaged"
    keeps_base, routed, adversary = False, False, None
    read = staticmethod(as_logits)
    weights = SumRule.weights


RULES: dict[str, Rule] = {
    found.name: found() for found in list(vars().values()) if isinstance(found, type) and hasattr(found, "keeps_base")
}


def get_rule(name: str) -> Rule:
    """The rule of this name."""
    if name not in RULES:
        raise RedxError(f"There is no rule {name!r}; choose one of {', '.join(RULES)}.")
    return RULES[name]


def compose(rule: Rule, parts: Parts, weights: Tensor) -> Tensor:
    """Scores of the composed answer: logits, or probabilities where the rule reads those."""
    base = rule.read(parts.base)
    scores = torch.einsum("nk,nkc->nc", weights, rule.read(parts.residuals))  # (N, C)
    if rule.keeps_base:
        return base + scores
    nobody = ~weights.any(-1, keepdim=True)  # (N, 1)
    return torch.where(nobody, base, scores)


def to_logits(rule: Rule, scores: Tensor) -> Tensor:
    """Scores as logits, so that loss and calibration mean the same for every rule."""
    probabilities = rule.read is as_probabilities and scores.shape[-1] > 1
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log() if probabilities else scores


def vertex_scores(rule: Rule, parts: Parts) -> Tensor:
    """Scores under each of the K routers that trust one expert alone: the corners of the simplex."""
    corners = rule.read(parts.residuals)  # (N, K, C)
    return rule.read(parts.base)[:, None] + corners if rule.keeps_base else corners
