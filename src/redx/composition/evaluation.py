"""Everything after the waist, put together: rules, noise, certificates and figures, from `Parts` alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from redx.composition import certificate, noise
from redx.composition.metrics import Tally, by_class, by_domain, mean_interval, noise_area
from redx.composition.noise import Noise
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import RULES, Rule, RuleId, compose, get_rule, to_logits, vertex_scores
from redx.config import BankId
from redx.errors import RedxError
from redx.seeding import generator

Row = dict[str, Any]  # one line of results.jsonl
Banks = dict[BankId, Parts]  # parts of the same examples by bank


@dataclass(frozen=True)
class CertifiedPredictions:
    """What a rule answered for every example, and how much routing mass it takes to change that."""

    predicted: Tensor  # (N,)
    radius: Tensor  # (N,)


def noisy_weights(
    rule: Rule, parts: Parts, kind: Noise | None = None, level: float = 0.0, draw: Generator | None = None
) -> Tensor:
    """The weights of a rule, with a kind of noise at some level: (N, K)."""
    reached = rule.adversary and kind is not None and (rule.routed or kind.reaches_unrouted)
    if kind is None or not reached:
        return rule.weights(parts)
    noise.check_level(level)
    draw = draw or generator(0, "noise", kind.name)
    if kind.on == "weights":
        return kind(rule.weights(parts), level, draw, simplex=rule.adversary == "simplex")
    gates = kind(parts.gates, level, draw)
    return rule.weights(Parts(parts.base, parts.residuals, gates, parts.labels, parts.domains))


def predict(rule: Rule, parts: Parts, weights: Tensor) -> Tensor:
    """Predictions, streamed: (N,)."""
    said = [predicted_classes(compose(rule, part, weights[rows])) for rows, part in parts.chunks()]
    return torch.cat(said) if said else parts.labels


def certify(rule: Rule, parts: Parts, weights: Tensor | None = None) -> CertifiedPredictions:
    """Predictions and exact radii, streamed."""
    weights = rule.weights(parts) if weights is None else weights
    predicted, radii = [], []
    for rows, part in parts.chunks():
        scores = compose(rule, part, weights[rows])
        said = predicted_classes(scores)
        predicted.append(said)
        radii.append(_radius(rule, part, scores, said))
    nothing = torch.empty(0)
    return CertifiedPredictions(torch.cat([parts.labels[:0], *predicted]), torch.cat([nothing, *radii]))


def _radius(rule: Rule, parts: Parts, scores: Tensor, predicted: Tensor) -> Tensor:
    if rule.adversary is None:
        return torch.ones(len(parts), dtype=scores.dtype)
    if rule.adversary == "simplex":
        worst = certificate.worst_on_simplex(vertex_scores(rule, parts), predicted)
    else:
        worst = certificate.worst_in_box(parts.base, parts.residuals, predicted)
    return certificate.radius(certificate.margins(scores, predicted), worst)


def tally(rule: Rule, parts: Parts, domains: tuple[str, ...]) -> Tally:
    """Count the answers of a rule without noise."""
    outputs = parts.base.shape[1]
    count = outputs if outputs > 1 else int(parts.labels.max()) + 2
    tally = Tally(outputs, domains, count)
    weights = rule.weights(parts)
    for rows, part in parts.chunks():
        scores = to_logits(rule, compose(rule, part, weights[rows]))
        tally.update(scores, part.base, part.labels, part.domains)
    return tally


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
    """Every rule on every bank it can read: figures, certified accuracy, and accuracy under noise, in long format."""
    rows: list[Row] = []
    for rule, bank, parts in match_banks(banks, rules):
        fixed = {"task": task, "rule": rule.name, "bank": bank}

        def add(metric: str, value: float | None, domain: str = "all", kind: str = "none", level: float = 0.0) -> None:
            row = {**fixed, "noise": kind, "level": level, "seed": seed, "domain": domain}  # noqa: B023
            rows.append({**row, "metric": metric, "value": value})

        figures = tally(rule, parts, domains)
        for metric, value in figures.compute().items():
            if metric.startswith("domain:"):
                add("accuracy", value, metric.removeprefix("domain:"))
            else:
                add(metric, value)
        if figures.outputs > 1:
            confusion = figures.confusion.compute()
            for metric, values in by_class(confusion).items():
                for label, value in enumerate(values):
                    add(metric, value, f"class {label}")
            for truth, said in confusion.nonzero().tolist():
                add("confusion", int(confusion[truth, said]), f"class {truth} as {said}")
        judged = certify(rule, parts)
        right = judged.predicted == parts.labels
        for epsilon in epsilons:
            add(f"certified@{epsilon:g}", certificate.certified_accuracy(judged.radius, right, epsilon))
        for kind in map(noise.get_noise, kinds):
            curve = []
            for level in levels:
                draw = generator(seed, "noise", kind.name, level)
                right = predict(rule, parts, noisy_weights(rule, parts, kind, level, draw)) == parts.labels
                curve.append(float(right.double().mean()))
                add("accuracy", curve[-1], "all", kind.name, level)
                for name, share in by_domain(right, parts.domains, domains).items():
                    add("accuracy", share, name, kind.name, level)
            if len(levels) > 1 and min(levels) == 0 and max(levels) == 1:
                add("noise_area", noise_area(tuple(levels), curve), "all", kind.name, 1.0)
    return rows


def match_banks(banks: Banks, rules: Sequence[str]) -> Iterable[tuple[Rule, str, Parts]]:
    """Rules with each bank they can read; `red/anchored` asks for one bank only, and `base` reads just one."""
    for name in rules:
        wanted, only = RuleId.parse(name)
        rule = get_rule(wanted)
        fitting = {bank: parts for (form, bank), parts in banks.items() if form == rule.form}
        if only and only not in fitting:
            raise RedxError(
                f"Rule {wanted!r} finds no bank {only!r} here; choose one of {', '.join(fitting) or 'none'}."
            )
        if rule.name == "base":
            fitting = {"": next(iter(banks.values()))}
        for bank, parts in fitting.items():
            if not only or bank == only:
                yield rule, bank, parts


def summarise(rows: list[Row], main: dict[str, str], examples: int) -> dict[str, Any]:
    """The `rules` of summary.json: means over seeds, by rule and bank; main banks also by the rule's plain name."""
    values: dict[tuple[str, str], dict[tuple[str, str, float, str], list[float]]] = {}
    for row in rows:
        if row["value"] is not None:
            slot = (row["metric"], row["noise"], row["level"], row["domain"])
            values.setdefault((row["rule"], row["bank"]), {}).setdefault(slot, []).append(row["value"])
    rules: dict[str, Any] = {}
    for (rule, bank), figures in values.items():
        entry = _entry(figures, examples)
        if bank:
            rules[str(RuleId(rule, bank))] = entry
        if not bank or main.get(get_rule(rule).form) == bank:
            rules[rule] = entry
    return dict(sorted(rules.items(), key=lambda item: list(RULES).index(RuleId.parse(item[0]).rule)))


def _entry(figures: dict[tuple[str, str, float, str], list[float]], examples: int) -> dict[str, Any]:
    mean = {slot: sum(found) / len(found) for slot, found in figures.items()}
    clean = {metric: value for (metric, kind, _, domain), value in mean.items() if (kind, domain) == ("none", "all")}
    entry: dict[str, Any] = {"accuracy": mean_interval(figures["accuracy", "none", 0.0, "all"], examples)}
    for metric in ("macro_precision", "macro_recall", "macro_f1", "weighted_f1", "ece", "loss"):
        entry[metric] = clean.get(metric)
    entry["per_domain"] = {
        domain: value
        for (metric, kind, _, domain), value in mean.items()
        if metric == "accuracy" and kind == "none" and domain != "all"
    }
    entry["worst_domain"] = clean["worst_domain"]
    entry["per_class"] = {}
    for (metric, _, _, domain), value in mean.items():
        if metric in ("precision", "recall", "f1"):
            entry["per_class"].setdefault(domain.removeprefix("class "), {})[metric] = value
    entry["certified"] = {name.split("@")[1]: value for name, value in clean.items() if name.startswith("certified@")}
    entry["noise"], entry["noise_area"] = {}, {}
    for (metric, kind, level, domain), value in mean.items():
        if kind != "none" and domain == "all":
            if metric == "accuracy":
                entry["noise"].setdefault(kind, {})[f"{level:g}"] = value
            else:
                entry["noise_area"][kind] = value
    entry["harm"], entry["help"] = clean["harm"], clean["help"]
    return entry
