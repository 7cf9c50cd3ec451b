"""Evaluation of rules on `Parts`: predictions, certified radii, and all metrics as rows of results.jsonl.

Every function takes a whole record or its pieces, and returns the same for both. Of a record in pieces only what has no
axis of classes is held for all examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redx.composition import certificate, noise
from redx.composition.log_loss import LossCertificate, active_losses, known_losses
from redx.composition.metrics import Tally, by_domain, noise_area, unit_mean
from redx.composition.parts import Held, Parts, Pieces, Record, in_pieces, predicted_classes
from redx.composition.rules import (
    BaseRule,
    Rule,
    RuleId,
    compose,
    contributing,
    general_rules,
    get_rule,
    to_logits,
    vertex_scores,
)
from redx.composition.summary import Row
from redx.config import SHARED_ONLY, BankId
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


def predict(rule: Rule | str, record: Record, weights: Tensor | None = None) -> Tensor:
    """Return the predictions of a rule, computed chunk by chunk.

    Parameters
    ----------
    rule, record
        The rule that composes base and experts, or its name, and the record of N examples and K experts.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    Tensor
        Predicted classes of shape (N,); for a regression the predicted answers.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> predict("red", Parts(base, residuals, torch.zeros(1, 2)), torch.tensor([[1.0, 0.0]]))
    tensor([1])
    """
    rule, predictions = get_rule(rule), []
    for where, piece in in_pieces(record).rows():
        used = rule.weights(piece) if weights is None else weights[where]
        predictions += [predicted_classes(compose(rule, part, used[rows])) for rows, part in piece.chunks()]
    return torch.cat(predictions) if predictions else torch.empty(0, dtype=torch.int64)


def certify(rule: Rule | str, record: Record, weights: Tensor | None = None) -> CertifiedPredictions:
    """Return the predictions of a rule with their exact radii, computed chunk by chunk.

    Parameters
    ----------
    rule, record
        The rule that composes base and experts, or its name, and the record of N examples and K experts. Labels are
        not needed.
    weights
        The weight of every expert, (N, K); by default the rule's own.

    Returns
    -------
    CertifiedPredictions
        Predictions and radii, both of shape (N,).

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[9.0, -9.0]]), domains=torch.tensor([0]))
    >>> certified = certify("red-oracle", parts)
    >>> certified.predicted, certified.radius
    (tensor([0]), tensor([0.6667]))
    """
    rule = get_rule(rule)
    predictions, radii = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
    for where, piece in in_pieces(record).rows():
        used = rule.weights(piece) if weights is None else weights[where]
        for rows, chunk in piece.chunks():
            part = contributing(rule, chunk)
            scores = compose(rule, part, used[rows])
            predicted = predicted_classes(scores)
            predictions.append(predicted)
            radii.append(_radius(rule, part, scores, predicted, used[rows]))
    return CertifiedPredictions(torch.cat(predictions), torch.cat(radii))


def _radius(rule: Rule, parts: Parts, scores: Tensor, predicted: Tensor, weights: Tensor) -> Tensor:
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
    if not rule.keeps_base and parts.experts:  # an example without weights has the base's scores at ε = 0 alone
        silent = ~weights.any(-1, keepdim=True)
        start = certificate.margins(torch.zeros_like(scores), predicted)  # towards which the scores go as ε does
        margin, worst = torch.where(silent, start, margin), torch.where(silent & (start < 0), start, worst)
    return certificate.radius(margin, worst, certificate.loses_ties(scores, predicted), error)


def worst_harm(parts: Parts, certified: CertifiedPredictions) -> Tensor:
    """Return where the base is right and some router makes the composed answer wrong, (N,).

    Parameters
    ----------
    parts
        The record of N examples.
    certified
        The certified predictions of a rule on these examples, as `certify` returns them.

    Raises
    ------
    RedxError
        If a label is unknown.
    """
    labels = parts.true_labels()
    right = predicted_classes(parts.base) == labels
    return right & ((certified.predicted != labels) | (certified.radius < 1))


def tally(rule: Rule | str, record: Record, domains: tuple[str, ...]) -> Tally:
    """Return the metrics of a rule without noise, as a `Tally` of all examples.

    Parameters
    ----------
    rule, record
        The rule that composes base and experts, or its name, and the record of N examples.
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
    >>> tally("red", parts, ("low",)).compute()["help"]
    1.0
    """
    rule, pieces = get_rule(rule), in_pieces(record)
    counts = _new_tally(_Narrow.read(pieces, ()), domains)
    for piece in pieces:
        weights = rule.weights(piece)
        _count(counts, rule, piece, weights, known_losses(rule, piece, weights))
    return counts


def _count(counts: Tally, rule: Rule, piece: Parts, weights: Tensor, losses: Tensor | None) -> None:
    """Add a piece to the metrics of a rule."""
    for rows, part in piece.chunks():
        logits = to_logits(rule, compose(rule, part, weights[rows]))
        counts.update(logits, part.base, part.true_labels(), part.domains, None if losses is None else losses[rows])


@dataclass(frozen=True)
class _Narrow:
    """What is kept of all examples while residuals are read piece by piece; small, since it has no axis of classes."""

    pieces: int
    outputs: int
    shortlist: bool
    labels: Tensor  # (N,)
    domains: Tensor | None  # (N,)
    gates: Tensor  # (N, K)
    weights: dict[str, Tensor]  # (N, K) by rule

    @staticmethod
    def read(record: Pieces, rules: Sequence[Rule]) -> _Narrow:
        """Return the narrow part of a record in one pass over its pieces."""
        labels, domains, gates, outputs, shortlist = [], [], [], 0, False
        weights: dict[str, list[Tensor]] = {rule.name: [] for rule in rules}
        for piece in record:
            outputs, shortlist = piece.base.shape[1], piece.losses is not None
            labels.append(piece.true_labels())
            domains.append(piece.domains)
            gates.append(piece.gates)
            for rule in rules:
                weights[rule.name].append(rule.weights(piece))
        if not sum(map(len, labels)):
            raise RedxError("The record holds no examples; give at least one.")
        known = [one for one in domains if one is not None]
        if 0 < len(known) < len(domains):
            raise RedxError("Some pieces of the record hold domains and others do not; give them for all or for none.")
        joined = {name: _join(values) for name, values in weights.items()}
        owners = _join(known) if known else None
        return _Narrow(len(gates), outputs, shortlist, _join(labels), owners, _join(gates), joined)


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _new_tally(narrow: _Narrow, domains: tuple[str, ...]) -> Tally:
    """Return an empty tally; a regression counts the integers up to its largest label."""
    outputs = narrow.outputs
    return Tally(outputs, domains, outputs if outputs > 1 else int(narrow.labels.max()) + 2, narrow.shortlist)


def evaluate(
    banks: Mapping[BankId, Record],
    *,
    task: str,
    seed: int,
    domains: tuple[str, ...],
    rules: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    levels: Sequence[float] = noise.LEVELS,
    epsilons: Sequence[float] = certificate.EPSILONS,
) -> list[Row]:
    """Return the metrics of every rule on every bank that it reads, with and without noise.

    Parameters
    ----------
    banks
        Records of the same examples by bank, as a whole or in pieces. A record in pieces is read twice, for all rules
        together; no more than a piece of its residuals is held.
    task, seed
        Values of the columns `task` and `seed`; the seed also determines the noise.
    domains
        Names of the domains, in the order of `Parts.domains`.
    rules
        Rules to evaluate, such as `red`, or `red/anchored` for one bank only; by default all that exist
        whatever the base is (`redx.composition.listing.rules_of_run` names those of a run).
    kinds, levels
        Kinds and levels of noise. The area under the noise curve needs levels from 0 to 1.
    epsilons
        Values of ε for certified accuracy.

    Returns
    -------
    list of dict
        Rows of results.jsonl, one per number, with the keys task, rule, bank, noise, level, seed, domain, metric and
        value.

    Raises
    ------
    RedxError
        If a label is unknown.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    >>> banks = {BankId("residual", "plain"): parts}
    >>> rows = evaluate(banks, task="demo", seed=0, domains=("low",), rules=["red"], kinds=[])
    >>> rows[0]["bank"], rows[0]["metric"], rows[0]["value"]
    ('plain', 'accuracy', 1.0)
    """
    kinds = tuple(noise.NOISES) if kinds is None else kinds
    streams = {bank: in_pieces(record) for bank, record in banks.items()}
    matched = list(_match(streams, general_rules() if rules is None else rules))
    figures: dict[int, _Figures] = {}
    for stream in streams.values():
        own = [index for index, (_, _, other) in enumerate(matched) if other is stream]
        narrow = _Narrow.read(stream, [matched[index][0] for index in own]) if own else None
        if narrow is None:
            continue
        for index in own:
            figures[index] = _Figures(matched[index][0], narrow, domains, kinds, levels, seed, tuple(epsilons))
        for where, piece in stream.rows():
            for index in own:
                figures[index].update(where, piece)
        for index in own:  # rows are made at once, so that the tensors of a bank can be freed
            figures[index].finish()
    return [
        {"task": task, "rule": rule.name, "bank": bank, "noise": row["noise"], "level": row["level"], "seed": seed}
        | row
        for index, (rule, bank, _) in enumerate(matched)
        for row in figures[index].rows
    ]


class _Figures:
    """The figures of one rule on one bank, collected piece by piece."""

    def __init__(
        self,
        rule: Rule,
        narrow: _Narrow,
        domains: tuple[str, ...],
        kinds: Sequence[str],
        levels: Sequence[float],
        seed: int,
        epsilons: tuple[float, ...],
    ) -> None:
        self.rule, self.narrow, self.domains, self.levels = rule, narrow, domains, tuple(levels)
        self.epsilons = epsilons
        self.certified_loss = LossCertificate(rule, epsilons) if self.narrow.outputs > 1 else None
        self.counts = _new_tally(narrow, domains)
        weights = narrow.weights[rule.name]
        self.sweep = noise.NoiseSweep(rule, narrow.gates, weights, kinds, levels, seed, several=narrow.pieces > 1)
        self.radii: list[Tensor] = []
        self.right: list[Tensor] = []
        self.harmed: list[Tensor] = []
        self.groups: list[Tensor] = []
        self.misrouted: dict[str, list[Tensor]] = {}  # losses of wrong routers, by metric
        self.rows: list[Row] = []

    def update(self, where: slice, record: Parts) -> None:
        """Add a piece, at its rows of the whole record."""
        weights = self.narrow.weights[self.rule.name][where]
        piece = contributing(self.rule, record)
        _count(self.counts, self.rule, piece, weights, known_losses(self.rule, record, weights))
        if record.groups is not None:
            self.groups.append(record.groups)
        if self.certified_loss is not None:
            self.certified_loss.update(record, weights, record.groups)
        if record.losses is not None and self.rule.adversary and record.experts:
            vertices = active_losses(record.losses, record)
            found = {"worst_loss": vertices.amax(-1)}  # convex in the weights, so largest at a vertex
            if record.domains is not None and record.experts > 1:
                others = record.domains[:, None] != torch.arange(record.experts)
                found["wrong_loss"] = (vertices * others).sum(-1) / others.sum(-1)
            for metric, losses in found.items():
                self.misrouted.setdefault(metric, []).append(losses)
        certified = certify(self.rule, piece, weights)
        self.radii.append(certified.radius)
        self.right.append(certified.predicted == piece.true_labels())
        if self.rule.adversary:
            self.harmed.append(worst_harm(piece, certified))
        self.sweep.update(where, piece, certified.predicted)

    def _add(
        self, metric: str, value: float | None, domain: str = "all", kind: str = "none", level: float = 0.0
    ) -> None:
        self.rows.append({"noise": kind, "level": level, "domain": domain, "metric": metric, "value": value})

    def finish(self) -> None:
        """Turn what was collected into rows."""
        for metric, value in self.counts.compute().items():
            name, _, domain = metric.partition(":")
            self._add("accuracy" if name == "domain" else name, value, domain or "all")
        for metric, pieces in self.misrouted.items():
            losses = torch.cat(pieces)
            self._add(metric, float(losses.double().mean()))
            for domain, value in by_domain(losses, self.narrow.domains, self.domains).items():
                self._add(metric, value, domain)
        if self.counts.outputs > 1 and self.counts.tabled:
            for metric, values in self.counts.compute_per_class().items():
                for label, value in enumerate(values):
                    self._add(metric, value, f"class {label}")
            confusion = self.counts.confusion.compute()  # (C, C), true classes in rows
            for label, predicted in confusion.nonzero().tolist():
                self._add("confusion", int(confusion[label, predicted]), f"class {label} as {predicted}")
        if self.harmed:
            groups = torch.cat(self.groups) if self.groups else None
            self._add("worst_harm", unit_mean(torch.cat(self.harmed), groups))
        radii, right = torch.cat(self.radii), torch.cat(self.right)
        for epsilon in self.epsilons:
            self._add(f"certified@{epsilon:g}", certificate.certified_accuracy(radii, right, epsilon))
        if self.certified_loss is not None:
            self._add_losses(self.certified_loss)
        for kind, answers in self.sweep.answers():
            self._add_curve(kind.name, answers)
        del self.sweep, self.radii, self.right, self.harmed, self.groups, self.misrouted, self.certified_loss

    def _add_losses(self, certified: LossCertificate) -> None:
        """Add the certified log-loss by ε and, where examples come in groups, that of requests, at ε = 1 by domain."""
        for metric, means in ("certified_loss", certified.means()), ("request_loss", certified.request_means()):
            for epsilon, value in means.items():
                self._add(f"{metric}@{epsilon:g}", value)
        if self.narrow.domains is not None and (worst := certified.request_losses(1.0)):
            groups = torch.cat(self.groups)
            losses = torch.tensor([worst[group] for group in groups.tolist()], dtype=torch.float64)
            for domain, value in by_domain(losses, self.narrow.domains, self.domains).items():
                self._add("request_loss@1", value, domain)

    def _add_curve(self, kind: str, answers: Sequence[Tensor]) -> None:
        """Add the accuracy at every level of a kind of noise."""
        curve = []
        for level, predicted in zip(self.levels, answers, strict=True):
            right = predicted == self.narrow.labels
            curve.append(float(right.double().mean()))
            self._add("accuracy", curve[-1], "all", kind, level)
            for name, share in by_domain(right, self.narrow.domains, self.domains).items():
                self._add("accuracy", share, name, kind, level)
        if len(self.levels) > 1 and min(self.levels) == 0 and max(self.levels) == 1:
            self._add("noise_area", noise_area(self.levels, curve), "all", kind, 1.0)


def match_banks(banks: Mapping[BankId, Held], rules: Sequence[str]) -> Iterable[tuple[Rule, str, Held]]:
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
        `base` reads no bank, and its name is empty; `base/NAME` is the base that this bank corrects.

    Examples
    --------
    >>> parts = Parts(torch.zeros(1, 2), torch.zeros(1, 3, 2), torch.zeros(1, 3), *[torch.zeros(1).long()] * 2)
    >>> banks = {BankId("residual", "plain"): parts, BankId("residual", "risk"): parts}
    >>> [(rule.name, bank) for rule, bank, _ in match_banks(banks, ["base", "red", "sum/risk"])]
    [('base', ''), ('red', 'plain'), ('red', 'risk'), ('sum', 'risk')]
    """
    for rule, bank, record in _match(banks, rules):
        yield rule, bank, contributing(rule, record)


def _match(banks: Mapping[BankId, Held], rules: Sequence[str]) -> Iterable[tuple[Rule, str, Held]]:
    """Yield every rule with every bank that it reads, and the record as it is."""
    for text in rules:
        name, only = RuleId.parse(text)
        rule = get_rule(name)
        readable = {bank: record for (form, bank), record in banks.items() if form == rule.form}
        if only != SHARED_ONLY.name:  # a control is read only where it is named
            readable.pop(SHARED_ONLY.name, None)
        if rule.adversary == "box" and not only:  # a shortlist is exact on the simplex alone
            readable = {bank: record for bank, record in readable.items() if not _is_shortlist(record)}
        if only and only not in readable:
            raise RedxError(f"Rule {name!r} has no bank {only!r} here; choose one of {', '.join(readable) or 'none'}.")
        if isinstance(rule, BaseRule) and not only:
            readable = {"": next(iter(banks.values()))}
        for bank, record in readable.items():
            if not only or bank == only:
                yield rule, bank, record


def _is_shortlist(record: Held) -> bool:
    """Return whether a whole record holds a shortlist of the classes."""
    whole = record.source[0] if isinstance(record, Pieces) and isinstance(record.source, tuple) else record
    return isinstance(whole, Parts) and whole.losses is not None
