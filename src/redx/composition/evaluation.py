"""Evaluation of rules on `Parts`: predictions, certified radii, and all metrics as rows of results.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redx.composition import certificate, noise
from redx.composition.metrics import Tally, by_domain, noise_area
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import RULES, Rule, RuleId, compose, contributing, get_rule, to_logits, vertex_scores
from redx.composition.summary import Row
from redx.composition.summary import summarise as summarise  # part of the interface of this module
from redx.composition.sweep import noise_sweep
from redx.composition.sweep import noisy_weights as noisy_weights  # part of the interface of this module
from redx.config import BankId
from redx.errors import RedxError

Banks = dict[BankId, Parts]  # the records of the same examples, by bank


@dataclass(frozen=True)
class CertifiedPredictions:
    """The predictions of a rule with their certified radii.

    Attributes
    ----------
    predicted
        Predicted classes of shape (N,); for a regression the predicted answers.
    radius
        ε* of shape (N,): the share of routing weight that may be moved without changing the prediction.

    Examples
    --------
    >>> certified = CertifiedPredictions(predicted=torch.tensor([1, 0]), radius=torch.tensor([1.0, 0.2]))
    >>> (certified.radius == 1).tolist()  # which predictions no router can change
    [True, False]
    """

    predicted: Tensor
    radius: Tensor


def predict(rule: Rule, parts: Parts, weights: Tensor) -> Tensor:
    """Return the predictions of a rule, computed chunk by chunk.

    Parameters
    ----------
    rule, parts
        The rule that composes base and experts, and the record of N examples and K experts.
    weights
        The weight of every expert, (N, K).

    Returns
    -------
    Tensor
        Predicted classes of shape (N,); for a regression the predicted answers.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 2), torch.tensor([1]), torch.tensor([0]))
    >>> predict(get_rule("red"), parts, torch.tensor([[1.0, 0.0]]))
    tensor([1])
    """
    predictions = [predicted_classes(compose(rule, part, weights[rows])) for rows, part in parts.chunks()]
    if len(predictions) == 1:
        return predictions[0]
    return torch.cat(predictions) if predictions else parts.labels


def certify(rule: Rule, parts: Parts, weights: Tensor | None = None) -> CertifiedPredictions:
    """Return the predictions of a rule with their exact radii, computed chunk by chunk.

    Parameters
    ----------
    rule, parts
        The rule that composes base and experts, and the record of N examples and K experts.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    CertifiedPredictions
        Predictions and radii, both of shape (N,).

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[9.0, -9.0]]), torch.tensor([0]), torch.tensor([0]))
    >>> certified = certify(get_rule("red-oracle"), parts)
    >>> certified.predicted, certified.radius
    (tensor([0]), tensor([0.6667]))
    """
    weights = rule.weights(parts) if weights is None else weights
    predictions, radii = [parts.labels[:0]], [torch.empty(0)]
    for rows, chunk in parts.chunks():
        part = contributing(rule, chunk)
        scores = compose(rule, part, weights[rows])
        predicted = predicted_classes(scores)
        predictions.append(predicted)
        radii.append(_radius(rule, part, scores, predicted))
    return CertifiedPredictions(torch.cat(predictions), torch.cat(radii))


def _radius(rule: Rule, parts: Parts, scores: Tensor, predicted: Tensor) -> Tensor:
    if rule.adversary is None:
        return torch.ones(len(parts), dtype=scores.dtype)
    in_box = rule.adversary == "box"
    if in_box:
        worst = certificate.worst_in_box(parts.base, parts.residuals, predicted)
    else:
        worst = certificate.worst_on_simplex(vertex_scores(rule, parts), predicted)
    base = rule.read(parts.base) if rule.keeps_base else None
    error = certificate.rounding_error(base, rule.read(parts.residuals), predicted, in_box)
    margin = certificate.margins(scores, predicted)
    return certificate.radius(margin, worst, certificate.loses_ties(scores, predicted), error)


def worst_harm(parts: Parts, certified: CertifiedPredictions) -> Tensor:
    """Return where the base is right and some router makes the composed answer wrong, (N,).

    Parameters
    ----------
    parts
        The record of N examples.
    certified
        The certified predictions of a rule on these examples, as `certify` returns them.
    """
    right = predicted_classes(parts.base) == parts.labels
    return right & ((certified.predicted != parts.labels) | (certified.radius < 1))


def tally(rule: Rule, parts: Parts, domains: tuple[str, ...]) -> Tally:
    """Return the metrics of a rule without noise, as a `Tally` of all examples.

    Parameters
    ----------
    rule, parts
        The rule that composes base and experts, and the record of N examples.
    domains
        Names of the domains, in the order of `Parts.domains`.

    Returns
    -------
    Tally
        The accumulated counts; `compute` returns the metrics.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    >>> tally(get_rule("red"), parts, ("low",)).compute()["help"]
    1.0
    """
    outputs = parts.base.shape[1]
    answers = outputs if outputs > 1 else int(parts.labels.max()) + 2
    counts = Tally(outputs, domains, answers)
    weights = rule.weights(parts)
    for rows, part in parts.chunks():
        logits = to_logits(rule, compose(rule, part, weights[rows]))
        counts.update(logits, part.base, part.labels, part.domains)
    return counts


def evaluate(
    banks: Banks,
    *,
    task: str,
    seed: int,
    domains: tuple[str, ...],
    rules: Sequence[str] = tuple(RULES),
    kinds: Sequence[str] = tuple(noise.NOISES),
    levels: Sequence[float] = noise.LEVELS,
    epsilons: Sequence[float] = certificate.EPSILONS,
) -> list[Row]:
    """Return the metrics of every rule on every bank that it reads, with and without noise.

    Parameters
    ----------
    banks
        Records of the same examples by bank.
    task, seed
        Values of the columns `task` and `seed`; the seed also determines the noise.
    domains
        Names of the domains, in the order of `Parts.domains`.
    rules
        Rules to evaluate, such as `red`, or `red/anchored` for one bank only.
    kinds, levels
        Kinds and levels of noise. The area under the noise curve needs levels from 0 to 1.
    epsilons
        Values of ε for certified accuracy.

    Returns
    -------
    list of dict
        Rows of results.jsonl, one per number, with the keys task, rule, bank, noise, level, seed, domain, metric and
        value.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    >>> banks = {BankId("residual", "plain"): parts}
    >>> rows = evaluate(banks, task="demo", seed=0, domains=("low",), rules=["red"], kinds=[])
    >>> rows[0]["bank"], rows[0]["metric"], rows[0]["value"]
    ('plain', 'accuracy', 1.0)
    """
    rows: list[Row] = []
    for rule, bank, parts in match_banks(banks, rules):
        same = {"task": task, "rule": rule.name, "bank": bank}

        def add(metric: str, value: float | None, domain: str = "all", kind: str = "none", level: float = 0.0) -> None:
            row = {**same, "noise": kind, "level": level, "seed": seed, "domain": domain}  # noqa: B023
            rows.append({**row, "metric": metric, "value": value})

        counts = tally(rule, parts, domains)
        for metric, value in counts.compute().items():
            if metric.startswith("domain:"):
                add("accuracy", value, metric.removeprefix("domain:"))
            else:
                add(metric, value)
        if counts.outputs > 1:
            for metric, values in counts.compute_per_class().items():
                for label, value in enumerate(values):
                    add(metric, value, f"class {label}")
            confusion = counts.confusion.compute()  # (C, C), true classes in rows
            for label, predicted in confusion.nonzero().tolist():
                add("confusion", int(confusion[label, predicted]), f"class {label} as {predicted}")
        certified = certify(rule, parts)
        right = certified.predicted == parts.labels
        if rule.adversary:
            add("worst_harm", float(worst_harm(parts, certified).double().mean()))
        for epsilon in epsilons:
            add(f"certified@{epsilon:g}", certificate.certified_accuracy(certified.radius, right, epsilon))
        curves = noise_sweep(rule, parts, certified.predicted, tuple(map(noise.get_noise, kinds)), levels, seed)
        for kind, answers in curves:
            curve = []
            for level, predicted in zip(levels, answers, strict=True):
                right = predicted == parts.labels
                curve.append(float(right.double().mean()))
                add("accuracy", curve[-1], "all", kind.name, level)
                for name, share in by_domain(right, parts.domains, domains).items():
                    add("accuracy", share, name, kind.name, level)
            if len(levels) > 1 and min(levels) == 0 and max(levels) == 1:
                add("noise_area", noise_area(tuple(levels), curve), "all", kind.name, 1.0)
    return rows


def match_banks(banks: Banks, rules: Sequence[str]) -> Iterable[tuple[Rule, str, Parts]]:
    """Yield every rule with every bank that it reads.

    Parameters
    ----------
    banks
        Records of the same examples by bank.
    rules
        Rules such as `red`, or `red/anchored` for one bank only.

    Yields
    ------
    tuple of Rule, str and Parts
        The rule, the name of the bank, and its record with the residuals that contribute under this rule. The rule
        `base` reads no bank: its name is empty.

    Examples
    --------
    >>> parts = Parts(torch.zeros(1, 2), torch.zeros(1, 3, 2), torch.zeros(1, 3), *[torch.zeros(1).long()] * 2)
    >>> banks = {BankId("residual", "plain"): parts, BankId("residual", "owned"): parts}
    >>> [(rule.name, bank) for rule, bank, _ in match_banks(banks, ["base", "red", "sum/owned"])]
    [('base', ''), ('red', 'plain'), ('red', 'owned'), ('sum', 'owned')]
    """
    for text in rules:
        name, only = RuleId.parse(text)
        rule = get_rule(name)
        readable = {bank: parts for (form, bank), parts in banks.items() if form == rule.form}
        if only and only not in readable:
            raise RedxError(f"Rule {name!r} has no bank {only!r} here; choose one of {', '.join(readable) or 'none'}.")
        if rule.name == "base":
            readable = {"": next(iter(banks.values()))}
        for bank, parts in readable.items():
            if not only or bank == only:
                yield rule, bank, contributing(rule, parts)
