"""The rules that put experts together: `scores = [base] + Σ_k w_k · read(residual_k)`.

Rules differ in the weights `w`, in whether the base's logits are added, in which form of bank they read, and (for
`uniform`) in averaging probabilities instead of logits. Where all weights of an example are zero, the base answers.
A rule carries its own words and colour, so that tables and figures show it without knowing it; a package from outside
adds one with `redx.RULES.register("mine", MyRule())`, or with `@redx.RULES.register("mine")`
above a class or above a function that gives weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from redx.composition.parts import Held, Parts, change
from redx.errors import RedxError
from redx.registry import Registry

Form = Literal["residual", "standalone", "pooled", "averaged"]
FORMS = ("residual", "standalone", "pooled", "averaged")
Region = Literal["simplex", "box"]  # weights that sum to one, or each weight free in [0, 1]
Shares = Literal["nothing", "sums", "data"]  # of an owner, beside its expert


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
    about
        What it does, in one line; by default the first line of the docstring.
    label
        How tables and figures call it; by default the name.
    hint
        What it does in a few words, for short tables; by default `about`. None leaves it out of those.
    phrase
        How a sentence calls it, such as `the mixture of experts`; by default the label.
    colour
        Its colour in figures, such as `#d55e00`; None lets the figure choose one that is free.
    knows_domain
        Whether it reads the true domain, which a question of a user does not have.
    shares
        What owners share for its weights, such as `data` for a rule that was fitted on examples of all domains. What
        they share for its base and its bank is known from the settings of a run (`redx.composition.listing.shares`).
    needs_statistics
        Whether it exists only where the base is the sum of owners' statistics.

    Examples
    --------
    >>> class FirstRule(Rule):
    ...     '''The base plus the residual of the first expert.'''
    ...
    ...     name = "first"
    ...
    ...     def weights(self, parts):
    ...         return torch.eye(parts.experts, dtype=parts.base.dtype)[:1].expand(len(parts), -1)
    >>> _ = RULES.register("first", FirstRule())
    >>> RULES.unregister("first").about
    'The base plus the residual of the first expert.'
    """

    name: str = ""
    form: Form = "residual"
    keeps_base: bool = True
    routed: bool = False
    adversary: Region | None = None
    label: str = ""
    phrase: str = ""
    hint: str | None = ""
    colour: str | None = None
    knows_domain: bool = False
    shares: Shares = "nothing"
    needs_statistics: bool = False

    @property
    def about(self) -> str:
        """What the rule does, in one line."""
        return (type(self).__doc__ or "").strip().partition("\n")[0]

    def weights(self, parts: Parts) -> Tensor:
        """Return the weight of every expert for every example, (N, K)."""
        raise NotImplementedError

    def read(self, logits: Tensor) -> Tensor:
        """Return what is mixed: the logits themselves, or probabilities."""
        return logits


class BaseRule(Rule):
    """The base alone: what every other rule must not fall below."""

    name, label, phrase, colour = "base", "base", "the base", "#7d8590"
    hint = "the base alone"

    def weights(self, parts: Parts) -> Tensor:
        return torch.zeros_like(parts.gates)


class StatisticsRule(BaseRule):
    """The ridge head on the sum of owners' statistics, without experts: the base, where a run's base is this head."""

    name, label, phrase = "statistics", "sum of owners' statistics", "the sum of the owners' statistics"
    colour = "#4b535d"
    hint = None  # short tables show it as the base
    needs_statistics = True


class RedRule(Rule):
    """The base plus the experts' residuals, weighted by the router."""

    name, label, phrase, colour = "red", "RED", "RED", "#d55e00"
    hint = "base + routed experts"
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return parts.gates.softmax(-1)


class FixedRule(Rule):
    """The base plus the mean residual of all experts."""

    name, label, phrase, colour = "fixed", "fixed weights", "fixed weights", "#b5a400"
    hint = "base + mean residual"
    adversary = "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _equal_weights(parts)


class SumRule(Rule):
    """The base plus every residual in full, without a router."""

    name, label, phrase, colour = "sum", "sum", "the sum without a router", "#e69f00"
    hint = "base + all residuals"
    adversary = "box"

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class RedOracleRule(Rule):
    """The base plus the residual of the example's own expert: perfect routing."""

    name, label, phrase, colour = "red-oracle", "RED, perfect routing", "RED with perfect routing", "#b07a4a"
    hint = None
    knows_domain = True
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _true_domain(parts)


class MoeRule(Rule):
    """Standalone heads, their logits weighted by the router: the classical mixture of experts."""

    name, label, phrase, colour = "moe", "MoE", "the mixture of experts", "#1279b8"
    hint = "standalone, routed"
    form, keeps_base = "standalone", False
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return parts.gates.softmax(-1)


class UniformRule(Rule):
    """Standalone heads, their probabilities averaged."""

    name, label, phrase, colour = "uniform", "uniform", "uniform averaging", "#56b4e9"
    hint = "mean of all heads"
    form, keeps_base = "standalone", False
    adversary = "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _equal_weights(parts)

    def read(self, logits: Tensor) -> Tensor:
        return logits if logits.shape[-1] == 1 else logits.softmax(-1)  # the output of a regression stays as it is


class OracleRule(Rule):
    """The standalone head of the example's own domain: perfect routing."""

    name, label, phrase, colour = "oracle", "oracle", "standalone experts with perfect routing", "#cc79a7"
    hint = "moe, perfectly routed"
    knows_domain = True
    form, keeps_base = "standalone", False
    routed, adversary = True, "simplex"

    def weights(self, parts: Parts) -> Tensor:
        return _true_domain(parts)


class GlobalRule(Rule):
    """One head trained on all data pooled: the non-modular reference, a bank of a single expert."""

    name, label, phrase, colour = "global", "pooled", "the head on pooled data", "#009e73"
    hint = "head on pooled data"
    form, keeps_base = "pooled", False

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class AverageRule(Rule):
    """One network whose parameters are merged from the experts', such as their mean: a bank of a single expert."""

    name, label, phrase, colour = "average", "averaged", "merged parameters", "#8e6bbf"
    hint = "merged parameters"
    form, keeps_base = "averaged", False

    def weights(self, parts: Parts) -> Tensor:
        return torch.ones_like(parts.gates)


class FunctionRule(Rule):
    """A rule whose weights a function gives; the first line of its docstring says what the rule does.

    Parameters
    ----------
    function
        From `Parts` of N examples and K experts to weights, (N, K).
    **attributes
        What differs from `Rule`, such as `adversary="simplex"`.
    """

    def __init__(self, function: Callable[[Parts], Tensor], **attributes: Any) -> None:
        if unknown := [name for name in attributes if name not in Rule.__annotations__]:
            known = ", ".join(Rule.__annotations__)
            raise RedxError(f"A rule has no attribute {unknown[0]!r}; choose among {known}.")
        self.function = function
        vars(self).update(attributes)

    @property
    def about(self) -> str:
        """What the rule does, in one line."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def weights(self, parts: Parts) -> Tensor:
        weights = self.function(parts)
        if not isinstance(weights, Tensor) or weights.shape != parts.gates.shape:
            given = f"of shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
            raise RedxError(
                f"The rule {self.name!r} gives weights {given}, not {tuple(parts.gates.shape)}; return one weight for "
                "every example and expert."
            )
        return weights


class RuleRegistry(Registry[Rule]):
    """The rules by name; what is registered may be a rule, a class of rules, or a function that gives weights.

    Examples
    --------
    >>> @RULES.register("loudest", routed=True, adversary="simplex")
    ... def loudest(parts):
    ...     '''The base plus the residual of the expert with the largest gate.'''
    ...     return torch.nn.functional.one_hot(parts.gates.argmax(-1), parts.experts).to(parts.base.dtype)
    >>> RULES.unregister("loudest").about
    'The base plus the residual of the expert with the largest gate.'
    """

    def register(self, name: str, entry: Any = None, **attributes: Any) -> Any:
        """Add a rule under a name, with attributes of `Rule` that differ; without the rule, return a decorator."""
        if entry is None:
            return lambda decorated: self.register(name, decorated, **attributes)
        if isinstance(entry, type) and issubclass(entry, Rule):
            rule = entry(**attributes)
        elif isinstance(entry, Rule):
            rule = entry
        elif callable(entry):
            function: Any = entry
            rule = FunctionRule(function, **attributes)
        else:
            raise RedxError(f"The rule {name!r} is {type(entry).__name__}, no redx.Rule; derive a class from it.")
        known = rule.form in FORMS and rule.adversary in (None, *get_args(Region)) and rule.shares in get_args(Shares)
        if not known:
            raise RedxError(f"The rule {name!r} has an unknown form, adversary or shares; see redx.Rule.")
        super().register(name, rule)
        rule.name = name
        return entry


RULES = RuleRegistry("rule")
for _rule in (  # in the order of tables
    BaseRule(),
    StatisticsRule(),
    RedRule(),
    FixedRule(),
    SumRule(),
    RedOracleRule(),
    MoeRule(),
    UniformRule(),
    OracleRule(),
    GlobalRule(),
    AverageRule(),
):
    RULES.register(_rule.name, _rule)


def general_rules() -> tuple[str, ...]:
    """Return the names of the rules that exist whatever the base is."""
    return tuple(name for name, rule in RULES.items() if not rule.needs_statistics)


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


def get_rule(rule: Rule | str) -> Rule:
    """Return the rule of this name, or the rule itself.

    Examples
    --------
    >>> get_rule("moe").keeps_base
    False
    """
    return rule if isinstance(rule, Rule) else RULES[rule]


def check_rule(name: str, statistics: bool) -> None:
    """Refuse a rule that needs a base from owners' statistics where the base is none.

    Parameters
    ----------
    name
        The rule, such as `red` or `red/shared`.
    statistics
        Whether the base is the sum of owners' statistics.

    Raises
    ------
    RedxError
        Where there is no such rule, or the base is another.
    """
    rule, bank = RuleId.parse(name)
    if not get_rule(rule).needs_statistics:
        return
    if bank:
        raise RedxError(f"The rule {rule!r} reads no bank; write {rule!r} alone, or 'base/{bank}' for a bank's base.")
    if not statistics:
        raise RedxError(f"The rule {rule!r} needs a base from owners' statistics, and this base is none; ask 'base'.")


def compose(rule: Rule | str, parts: Parts, weights: Tensor | None = None) -> Tensor:
    """Return the scores of the composed answers.

    Parameters
    ----------
    rule
        Decides whether the base is added and whether logits or probabilities are mixed.
    parts
        Base logits (N, C) and residuals (N, K, C).
    weights
        The weight of every expert, (N, K); by default the rule's own.

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
    ... )
    >>> compose("red", parts, torch.tensor([[1.0, 0.0]]))
    tensor([[1., 3.]])
    >>> compose("sum", parts)
    tensor([[1., 3.]])
    """
    rule = get_rule(rule)
    weights = rule.weights(parts) if weights is None else weights
    return mix(rule, rule.read(parts.base), rule.read(contributing(rule, parts).residuals), weights)


def mix(rule: Rule, base: Tensor, residuals: Tensor, weights: Tensor) -> Tensor:
    """Return the scores of the composed answers, from what the rule has read already: (N, C), (N, K, C), (N, K)."""
    scores = torch.bmm(weights[:, None], residuals)[:, 0]  # (N, C)
    if rule.keeps_base:
        return base + scores
    no_expert = ~weights.any(-1, keepdim=True)  # (N, 1)
    return torch.where(no_expert, base, scores)


def contributing(rule: Rule, record: Held) -> Held:
    """Return the record with the residuals that contribute under a rule: those above its cut-off, where it has one."""
    return change(record, lambda parts: parts.above_cutoff(rule.adversary or "simplex"))


def to_logits(rule: Rule | str, scores: Tensor) -> Tensor:
    """Return scores, (N, C), as logits, so that loss and calibration error mean the same for every rule."""
    are_probabilities = isinstance(get_rule(rule), UniformRule) and scores.shape[-1] > 1
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log() if are_probabilities else scores


def vertex_scores(rule: Rule | str, parts: Parts) -> Tensor:
    """Return the scores at the vertices of the simplex, where one expert has all the weight: (N, K, C)."""
    rule = get_rule(rule)
    scores = rule.read(contributing(rule, parts).residuals)
    return rule.read(parts.base)[:, None] + scores if rule.keeps_base else scores


def _equal_weights(parts: Parts) -> Tensor:
    return torch.full_like(parts.gates, 1 / max(1, parts.experts))


def _true_domain(parts: Parts) -> Tensor:
    """Return the one-hot of the domain; an example whose domain has no expert gets zero weights."""
    domains = parts.true_domains()
    experts = torch.arange(parts.experts, device=domains.device)
    return (domains[:, None] == experts).to(parts.base.dtype)
