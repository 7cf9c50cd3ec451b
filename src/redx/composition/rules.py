"""The rules that put experts together: `scores = [base] + Σ_k w_k · read(residual_k)`.

Rules differ in the weights `w`, in whether the base's logits are added, in which form of bank they read, and (for
`uniform`) in averaging probabilities instead of logits. Where all weights of an example are zero, the base answers.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from redx.composition.parts import Parts
from redx.errors import RedxError

Form = Literal["residual", "standalone", "pooled", "averaged"]
Region = Literal["simplex", "box"]  # weights that sum to one, or each weight free in [0, 1]


class Rule:
    """A rule; a subclass sets what differs and gives the weights.

    Attributes
    ----------
    name
        How users write it.
    form
        The form of bank that it reads.
    keeps_base
        Whether the base's logits are added.
    routed
        Whether a router chooses the weights, so that routing noise can change them.
    adversary
        Where wrong weights could lie: on the simplex, or in the box [0, 1]^K; None where no expert can be misused.
    """

    name: ClassVar[str]
    form: ClassVar[Form] = "residual"
    keeps_base: ClassVar[bool] = True
    routed: ClassVar[bool] = False
    adversary: ClassVar[Region | None] = None

    def weights(self, parts: Parts) -> Tensor:
        """Return the weight of every expert for every example, (N, K)."""
        raise NotImplementedError

    def read(self, logits: Tensor) -> Tensor:
        """Return what is mixed: the logits themselves, or probabilities."""
        return logits


class BaseRule(Rule):
    """The base alone: what every other rule must not fall below."""

    name = "base"

    def weights(self, parts: Parts) -> Tensor:
        return torch.zeros_like(parts.gates)


class RedRule(Rule):
    """The base plus the experts' residuals, weighted by the router."""

    name = "red"
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return parts.gates.softmax(-1)


class FixedRule(Rule):
    """The base plus the mean residual of all experts."""

    name = "fixed"
    adversary = "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _equal_weights(parts)


class SumRule(Rule):
    """The base plus every residual in full, without a router."""

    name = "sum"
    adversary = "box"

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class RedOracleRule(Rule):
    """The base plus the residual of the example's own expert: perfect routing."""

    name = "red-oracle"
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _true_domain(parts)


class MoeRule(Rule):
    """Standalone heads, their logits weighted by the router: the classical mixture of experts."""

    name = "moe"
    form, keeps_base = "standalone", False
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return parts.gates.softmax(-1)


class UniformRule(Rule):
    """Standalone heads, their probabilities averaged."""

    name = "uniform"
    form, keeps_base = "standalone", False
    adversary = "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _equal_weights(parts)

    def read(self, logits: Tensor) -> Tensor:
        return logits if logits.shape[-1] == 1 else logits.softmax(-1)  # the output of a regression stays as it is


class OracleRule(Rule):
    """The standalone head of the example's own domain: perfect routing."""

    name = "oracle"
    form, keeps_base = "standalone", False
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _true_domain(parts)


class GlobalRule(Rule):
    """One head trained on all data pooled: the non-modular reference, a bank of a single expert."""

    name = "global"
    form, keeps_base = "pooled", False

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class AverageRule(Rule):
    """One head whose parameters are the mean of the experts' parameters, a bank of a single expert."""

    name = "average"
    form, keeps_base = "averaged", False

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


_ALL: tuple[Rule, ...] = (  # in the order of tables; a new rule is listed here
    BaseRule(),
    RedRule(),
    FixedRule(),
    SumRule(),
    RedOracleRule(),
    MoeRule(),
    UniformRule(),
    OracleRule(),
    GlobalRule(),
    AverageRule(),
)
RULES = {rule.name: rule for rule in _ALL}


class RuleId(NamedTuple):
    """A rule and the bank that it reads, written `red/anchored`; without a bank, `red`."""

    rule: str
    bank: str = ""

    @classmethod
    def parse(cls, text: str) -> RuleId:
        """Return the rule and bank that are written so; the inverse of `str`."""
        rule, _, bank = text.partition("/")
        return cls(rule, bank)

    def __str__(self) -> str:
        return f"{self.rule}/{self.bank}" if self.bank else self.rule


def get_rule(name: str) -> Rule:
    """Return the rule of this name.

    Examples
    --------
    >>> get_rule("moe").keeps_base
    False
    """
    if name not in RULES:
        raise RedxError(f"There is no rule {name!r}; choose one of {', '.join(RULES)}.")
    return RULES[name]


def compose(rule: Rule, parts: Parts, weights: Tensor) -> Tensor:
    """Return the scores of the composed answers.

    Parameters
    ----------
    rule
        Decides whether the base is added and whether logits or probabilities are mixed.
    parts
        Base logits (N, C) and residuals (N, K, C).
    weights
        The weight of every expert, (N, K).

    Returns
    -------
    Tensor
        Scores of shape (N, C): logits, or probabilities where the rule averages those.

    Examples
    --------
    >>> import torch
    >>> parts = Parts(
    ...     base=torch.tensor([[1.0, 0.0]]),
    ...     residuals=torch.tensor([[[0.0, 3.0], [0.0, 0.0]]]),
    ...     gates=torch.zeros(1, 2),
    ...     labels=torch.tensor([1]),
    ...     domains=torch.tensor([0]),
    ... )
    >>> compose(get_rule("red"), parts, torch.tensor([[1.0, 0.0]]))
    tensor([[1., 3.]])
    """
    return mix(rule, rule.read(parts.base), rule.read(contributing(rule, parts).residuals), weights)


def mix(rule: Rule, base: Tensor, residuals: Tensor, weights: Tensor) -> Tensor:
    """Return the scores of the composed answers, from what the rule has read already: (N, C), (N, K, C), (N, K)."""
    scores = torch.bmm(weights[:, None], residuals)[:, 0]  # (N, C)
    if rule.keeps_base:
        return base + scores
    no_expert = ~weights.any(-1, keepdim=True)  # (N, 1)
    return torch.where(no_expert, base, scores)


def contributing(rule: Rule, parts: Parts) -> Parts:
    """Return the record with the residuals that contribute under a rule: those above its cut-off, where it has one."""
    return parts.above_cutoff(rule.adversary or "simplex")


def to_logits(rule: Rule, scores: Tensor) -> Tensor:
    """Return scores, (N, C), as logits, so that loss and calibration error mean the same for every rule."""
    are_probabilities = isinstance(rule, UniformRule) and scores.shape[-1] > 1
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log() if are_probabilities else scores


def vertex_scores(rule: Rule, parts: Parts) -> Tensor:
    """Return the scores at the vertices of the simplex, where one expert has all the weight: (N, K, C)."""
    scores = rule.read(contributing(rule, parts).residuals)
    return rule.read(parts.base)[:, None] + scores if rule.keeps_base else scores


def _equal_weights(parts: Parts) -> Tensor:
    return torch.full_like(parts.gates, 1 / max(1, parts.experts))


def _true_domain(parts: Parts) -> Tensor:
    """Return the one-hot of the domain; an example whose domain has no expert gets zero weights."""
    experts = torch.arange(parts.experts, device=parts.domains.device)
    return (parts.domains[:, None] == experts).to(parts.base.dtype)
