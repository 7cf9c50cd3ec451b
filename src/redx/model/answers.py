"""What a model answers, and how it came to it: one description for Python, `--json`, the HTTP API and audit files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule, contributing
from redx.report.notebook import answers_html

if TYPE_CHECKING:
    from redx.model.model import Model

SHOWN = 20  # answers that a notebook shows
Chosen = Callable[[Rule, tuple[str, ...]], Sequence[Sequence[float] | None]]  # weights that a user chose, by input


@dataclass(frozen=True)
class Explanation:
    """How a model came to one answer.

    Attributes
    ----------
    answer
        The predicted label, or the number of a regression; None where the model abstains.
    range
        The domain that this answer belongs to, where it belongs to one alone.
    base
        What the base alone answers.
    expert
        The expert with the largest weight; None where there are no experts.
    weights
        The weight of every expert.
    base_score
        The base's score of the answer; None where the rule does not add the base.
    contributions
        What every expert adds to the score of the answer.
    radius
        ε*, the share of routing weight that an adversary may move without changing the answer.
    cutoff
        The confidence that an expert has to exceed to contribute; None where the rule has no risk control.
    active
        The experts that contribute.
    confidence
        The largest confidence of an expert; None where the rule has no risk control.
    opposed
        The experts whose own answer, without a cut-off, is not that of the base; None unless the risk bounds the harm
        that routers do, for which this decides.
    abstained
        Whether the input looks like none of the known classes; None where that was not asked.
    closest
        What the model would answer if it did not abstain; None where that was not asked.
    """

    answer: Any
    range: str | None
    base: Any
    expert: str | None
    weights: dict[str, float]
    base_score: float | None
    contributions: dict[str, float]
    radius: float
    cutoff: float | None
    active: tuple[str, ...]
    confidence: float | None = None
    opposed: tuple[str, ...] | None = None
    abstained: bool | None = None
    closest: Any = None

    def _repr_html_(self) -> str:
        """Return the answer with a bar for what each expert adds to it, for notebooks."""
        return answers_html([self.as_dict()], 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON: infinite numbers as text, abstention only where asked."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("cutoff", "confidence"):
            if facts[name] is not None and not math.isfinite(facts[name]):
                facts[name] = str(facts[name])
        facts["opposed"] = None if self.opposed is None else list(self.opposed)
        if self.opposed is None:
            del facts["opposed"]
        if self.abstained is None:
            del facts["abstained"], facts["closest"]
        return facts | {"active": list(self.active)}


class Answers(list[Explanation]):
    """The descriptions of several answers: a list that notebooks show with bars."""

    def _repr_html_(self) -> str:
        return answers_html([one.as_dict() for one in self[:SHOWN]], len(self))


def as_frame(answers: Sequence[Explanation], like: Any) -> Any:
    """Return answers as a DataFrame of the same kind and with the same index as another one.

    Parameters
    ----------
    answers
        The answers, one for each row.
    like
        The DataFrame that was asked about.
    """
    columns = {
        "answer": [one.answer for one in answers],
        "domain": [one.expert if one.range is None else one.range for one in answers],
        "radius": [one.radius for one in answers],
        "abstained": [bool(one.abstained) for one in answers],
    }
    return type(like)(columns, index=like.index)


@dataclass(frozen=True)
class AnswerBatch:
    """What a model answers to N inputs, as tensors.

    Attributes
    ----------
    rule
        The rule that answered.
    names
        The K experts, or `pooled`.
    parts
        The record, with the residuals that contribute.
    weights
        The weights, (N, K).
    predicted, radius
        The predicted classes and the radii, (N,).
    active
        Which experts contribute, (N, K).
    cutoff
        The cut-off of risk control for every example, (N,), if there is one.
    confidence
        The largest confidence of an expert, (N,), if there is one.
    opposed
        Which experts oppose the base, (N, K), where the risk bounds the harm that routers do.
    """

    rule: Rule
    names: tuple[str, ...]
    parts: Parts
    weights: Tensor
    predicted: Tensor
    radius: Tensor
    active: Tensor
    cutoff: Tensor | None  # (N,)
    confidence: Tensor | None = None  # (N,)
    opposed: Tensor | None = None  # (N, K)

    def explain(self, model: Model, unfamiliar: Sequence[bool | None] | None = None) -> list[Explanation]:
        """Return the description of every answer; one tensor operation for each field, since batches are large.

        Parameters
        ----------
        model
            The model that answered.
        unfamiliar
            For every input whether the model abstains; None where that was not asked.
        """
        rule, parts, names = self.rule, self.parts, self.names
        column = self.predicted if model.classes else torch.zeros_like(self.predicted)
        residuals = rule.read(parts.residuals)  # (N, K, C)
        own = residuals.gather(-1, column[:, None, None].expand(-1, residuals.shape[1], 1))[..., 0]  # (N, K)
        unknown = [None] * len(self.predicted)
        first = self.weights.argmax(-1).tolist() if names else unknown
        rows = zip(
            self.predicted.tolist(),
            predicted_classes(parts.base).tolist(),
            first,
            self.weights.tolist(),
            rule.read(parts.base).gather(-1, column[:, None])[:, 0].tolist(),
            (self.weights * own).tolist(),
            self.radius.tolist(),
            self.active.tolist(),
            unknown if self.cutoff is None else self.cutoff.tolist(),
            unknown if self.confidence is None else self.confidence.tolist(),
            unknown if self.opposed is None else self.opposed.tolist(),
            unfamiliar or unknown,
            strict=True,
        )
        return [
            Explanation(
                answer=None if abstains else model.label(predicted),
                range=model.domain_of_answer(predicted),
                base=model.label(base),
                expert=None if largest is None else names[largest],
                weights=dict(zip(names, weights, strict=True)),
                base_score=score if rule.keeps_base else None,
                contributions=dict(zip(names, contributions, strict=True)),
                radius=radius,
                cutoff=cutoff,
                active=_where(names, active),
                confidence=sure,
                opposed=None if opposed is None else _where(names, opposed),
                abstained=abstains,
                closest=None if abstains is None else model.label(predicted),
            )
            for (
                predicted,
                base,
                largest,
                weights,
                score,
                contributions,
                radius,
                active,
                cutoff,
                sure,
                opposed,
                abstains,
            ) in rows
        ]


def answer_features(model: Model, h: Tensor, chosen: Chosen | None = None) -> AnswerBatch:
    """Return what a model answers to features, (N, E), with its rule and router.

    Parameters
    ----------
    model
        The model.
    h
        Features, as `model.embed` returns them.
    chosen
        Takes rule and names of the experts to weights that take the router's place, for each input or None.
    """
    rule, bank_id = model.rule_and_bank()
    parts = model.parts_of(h, bank_id)
    cutoff, active = None, parts.active(rule.adversary or "simplex")
    if parts.cutoffs is not None:
        found = getattr(parts.cutoffs, rule.adversary or "simplex")
        cutoff = found if isinstance(found, Tensor) else torch.full((len(parts),), found, dtype=torch.float64)
    names = ("pooled",) if rule.form in ("pooled", "averaged") else model.experts.names
    controlled = parts.cutoffs is not None and parts.confidences is not None and parts.experts > 0
    sure = parts.confidences.amax(-1) if controlled and parts.confidences is not None else None
    by_routers = controlled and model.control is not None and model.control.budget == "routing"
    opposed = find_opposed(parts) if by_routers else None
    parts, weights = contributing(rule, parts), rule.weights(parts)
    for row, given in enumerate(chosen(rule, names) if chosen else ()):
        if given is not None:
            weights[row] = torch.tensor(given, dtype=weights.dtype)
    certified = certify(rule, parts, weights)
    return AnswerBatch(
        rule, names, parts, weights, certified.predicted, certified.radius, active, cutoff, sure, opposed
    )


def find_opposed(parts: Parts) -> Tensor:
    """Return which experts, alone and without a cut-off, make the base's answer another one: (N, K)."""
    base, confidences = predicted_classes(parts.base), parts.confidences
    assert confidences is not None
    speaks = confidences > -math.inf  # an expert that is silent everywhere leaves the base's answer
    alone = [
        predicted_classes(parts.base + parts.residuals[:, expert] * speaks[:, expert, None]) != base
        for expert in range(parts.experts)
    ]
    return torch.stack(alone, -1)


def _where(names: Sequence[str], which: Sequence[bool]) -> tuple[str, ...]:
    return tuple(name for name, chosen in zip(names, which, strict=True) if chosen)
