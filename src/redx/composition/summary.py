"""Means over seeds: from the rows of results.jsonl to the section `rules` of summary.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from redx.composition.metrics import mean_interval
from redx.composition.rules import RULES, BaseRule, RuleId, get_rule
from redx.errors import RedxError
from redx.io.reading import guarded, read_json

SCHEMA = 2  # of summary.json; keys may be added to it, and none is renamed
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


def each_once(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of every rule and bank once: without those of a main bank under its rule's name alone."""
    with_bank = {RuleId.parse(name).rule for name in rules if RuleId.parse(name).bank}
    return {
        name: entry for name, entry in rules.items() if name not in with_bank or isinstance(RULES.get(name), BaseRule)
    }


def _entry(figures: dict[tuple[str, str, float, str], list[float]], examples: int) -> dict[str, Any]:
    """Return the figures of one rule and bank; the keys of `figures` are (metric, noise, level, domain)."""
    mean = {key: sum(values) / len(values) for key, values in figures.items()}
    clean = {metric: value for (metric, kind, _, domain), value in mean.items() if (kind, domain) == ("none", "all")}
    per_domain, per_class, noise_curves, noise_areas = {}, {}, {}, {}
    losses: dict[str, dict[str, float]] = {}  # by domain: records over a shortlist have them
    for (metric, kind, level, domain), value in mean.items():
        if metric in ("precision", "recall", "f1"):
            per_class.setdefault(domain.removeprefix("class "), {})[metric] = value
        elif metric == "noise_area":
            noise_areas[kind] = value
        elif metric == "accuracy" and kind != "none" and domain == "all":
            noise_curves.setdefault(kind, {})[f"{level:g}"] = value
        elif metric == "accuracy" and kind == "none" and domain != "all":
            per_domain[domain] = value
        elif metric in ("loss", "worst_loss", "wrong_loss") and domain != "all":
            losses.setdefault(f"per_domain_{metric}", {})[domain] = value
        elif metric == "request_loss@1" and domain != "all":
            losses.setdefault("per_domain_request_loss", {})[domain] = value
    averages = ("macro_precision", "macro_recall", "macro_f1", "weighted_f1", "ece", "loss")
    return {
        "accuracy": mean_interval(figures["accuracy", "none", 0.0, "all"], examples),
        **{metric: clean.get(metric) for metric in averages},
        **{metric: clean[metric] for metric in ("worst_loss", "wrong_loss") if metric in clean},
        "per_domain": per_domain,
        **losses,
        "worst_domain": clean.get("worst_domain"),
        "per_class": per_class,
        "certified": _by_epsilon(clean, "certified"),
        "certified_loss": _by_epsilon(clean, "certified_loss"),
        **({"request_loss": requests} if (requests := _by_epsilon(clean, "request_loss")) else {}),
        "noise": noise_curves,
        "noise_area": noise_areas,
        "harm": clean["harm"],
        "worst_harm": clean.get("worst_harm"),
        "help": clean["help"],
    }


def _by_epsilon(clean: dict[str, float], metric: str) -> dict[str, float]:
    """Return the values of a metric by ε, as `metric@ε` names them."""
    return {name.split("@")[1]: value for name, value in clean.items() if name.startswith(f"{metric}@")}


class _Open(BaseModel):
    """A JSON object with further entries than those that are checked."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Interval(_Open):
    """A mean with its interval."""

    mean: float
    low: float
    high: float


class RuleFigures(_Open):
    """The figures of one rule and bank in summary.json."""

    accuracy: Interval
    worst_domain: float | None = None
    harm: float | None = None
    help: float | None = None
    shares: str | None = None
    per_domain: dict[str, float | None] = {}
    per_class: dict[str, dict[str, float | None]] = {}
    certified: dict[str, float | None] = {}
    certified_loss: dict[str, float | None] = {}
    request_loss: dict[str, float | None] = {}
    noise: dict[str, dict[str, float | None]] = {}
    noise_area: dict[str, float | None] = {}

    @field_validator("certified", "certified_loss", "request_loss", "noise")
    @classmethod
    def check_levels(cls, curves: dict[str, Any]) -> dict[str, Any]:
        """Return curves by level, or refuse levels that are no numbers."""
        levels = [level for value in curves.values() if isinstance(value, dict) for level in value]
        levels += [level for level, value in curves.items() if not isinstance(value, dict)]
        if not all(math.isfinite(float(level)) for level in levels):
            raise ValueError("a level is no number")
        return curves


class DataFigures(_Open):
    """How many examples a run had."""

    train: int
    validation: int
    test: int
    split: str
    seen_in_train: float


class CostFigures(_Open):
    """What a run cost."""

    seconds: dict[str, float] = {}
    peak_memory_mb: float = 0.0
    parameters: dict[str, int] = {}


class RunSummary(_Open):
    """The content of summary.json, as far as anything reads it again."""

    rules: dict[str, RuleFigures]
    seeds: list[int] = []
    domains: list[str] = []
    interval: str = ""
    data: DataFigures | None = None
    router: dict[str, float | None] = {}
    cost: CostFigures = CostFigures()


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a summary.json.

    Raises
    ------
    RedxError
        If there is no such file, it is no summary of a run, or it has another schema than this version of redx writes.
    """
    summary = read_json(path)
    check_schema(path, summary)
    with guarded(path, "is no summary of a run", "repeat the run"):
        RunSummary.model_validate(summary)
    return summary


def check_schema(path: Path, summary: Any) -> None:
    """Refuse a summary that another version of redx wrote, by its schema."""
    schema = summary.get("schema", SCHEMA) if isinstance(summary, dict) else SCHEMA
    if schema != SCHEMA:
        raise RedxError(
            f"{path} has schema {schema!r:.20}, and this version of redx has schema {SCHEMA}; "
            "repeat the run with --out ANOTHER."
        )
