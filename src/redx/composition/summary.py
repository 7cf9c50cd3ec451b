"""Means over seeds: from the rows of results.jsonl to the section `rules` of summary.json."""

from __future__ import annotations

from typing import Any

from redx.composition.metrics import mean_interval
from redx.composition.rules import RULES, RuleId, get_rule

Row = dict[str, Any]  # one line of results.jsonl


def summarise(rows: list[Row], main: dict[str, str], examples: int) -> dict[str, Any]:
    """Return the means over seeds, the section `rules` of summary.json.

    Parameters
    ----------
    rows
        Rows of `evaluate` for one or more seeds.
    main
        The main bank of every form; its figures also appear under the rule's name alone.
    examples
        Number of test examples of one seed, for the interval of a single seed.

    Returns
    -------
    dict
        Figures by `RULE/BANK` and `RULE`, in the order of `RULES`.

    Examples
    --------
    >>> import torch
    >>> from redx.composition.evaluation import evaluate
    >>> from redx.composition.parts import Parts
    >>> from redx.config import BankId
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0]]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    >>> banks = {BankId("residual", "plain"): parts}
    >>> rows = evaluate(banks, task="demo", seed=0, domains=("low",), rules=["base", "red"])
    >>> summary = summarise(rows, {"residual": "plain"}, examples=1)
    >>> list(summary), summary["red"]["certified"]["1"]
    (['base', 'red/plain', 'red'], 1.0)
    """
    values: dict[tuple[str, str], dict[tuple[str, str, float, str], list[float]]] = {}
    for row in rows:
        if row["value"] is not None:
            key = (row["metric"], row["noise"], row["level"], row["domain"])
            values.setdefault((row["rule"], row["bank"]), {}).setdefault(key, []).append(row["value"])
    rules: dict[str, Any] = {}
    for (rule, bank), figures in values.items():
        entry = _entry(figures, examples)
        if bank:
            rules[str(RuleId(rule, bank))] = entry
        if not bank or main.get(get_rule(rule).form) == bank:
            rules[rule] = entry
    return dict(sorted(rules.items(), key=lambda item: list(RULES).index(RuleId.parse(item[0]).rule)))


def _entry(figures: dict[tuple[str, str, float, str], list[float]], examples: int) -> dict[str, Any]:
    """Return the figures of one rule and bank; the keys of `figures` are (metric, noise, level, domain)."""
    mean = {key: sum(values) / len(values) for key, values in figures.items()}
    clean = {metric: value for (metric, kind, _, domain), value in mean.items() if (kind, domain) == ("none", "all")}
    per_domain, per_class, noise_curves, noise_areas = {}, {}, {}, {}
    for (metric, kind, level, domain), value in mean.items():
        if metric in ("precision", "recall", "f1"):
            per_class.setdefault(domain.removeprefix("class "), {})[metric] = value
        elif metric == "noise_area":
            noise_areas[kind] = value
        elif metric == "accuracy" and kind != "none" and domain == "all":
            noise_curves.setdefault(kind, {})[f"{level:g}"] = value
        elif metric == "accuracy" and kind == "none" and domain != "all":
            per_domain[domain] = value
    averages = ("macro_precision", "macro_recall", "macro_f1", "weighted_f1", "ece", "loss")
    return {
        "accuracy": mean_interval(figures["accuracy", "none", 0.0, "all"], examples),
        **{metric: clean.get(metric) for metric in averages},
        "per_domain": per_domain,
        "worst_domain": clean["worst_domain"],
        "per_class": per_class,
        "certified": {name.split("@")[1]: value for name, value in clean.items() if name.startswith("certified@")},
        "noise": noise_curves,
        "noise_area": noise_areas,
        "harm": clean["harm"],
        "help": clean["help"],
    }
