"""What a run promises and what its test split shows: the key `risk` of a rule in summary.json, and the quarantine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from redx.composition.evaluation import predict
from redx.composition.metrics import exact_interval
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import RiskControl, group_confidence, group_interval, harm_figures, smallest_risk
from redx.composition.rules import Rule, RuleId, get_rule
from redx.config import RunConfig

SHARES = ("base", "clean", "worst", "harm", "routing_harm")  # of a domain: means over seeds
PRICED = "red"  # the rule whose accuracy at other risks is in the summary
LARGER_RISKS = (0.02, 0.05, 0.1)
NO_CUTOFFS = Cutoffs(-math.inf, -math.inf)  # an expert in quarantine, or outside its own classes, stays silent


def with_promises(
    rules: dict[str, Any], config: RunConfig, kept: Sequence[tuple[RiskControl, Parts]], units: int
) -> dict[str, Any]:
    """Return the section `rules` of the summary with the promise and the harm of every rule under risk control.

    Parameters
    ----------
    rules
        The section without them.
    config
        Settings of the run.
    kept
        The risk control of every seed, and the record of its test split.
    units
        The number of test examples of one seed, or of groups of them.
    """
    bank_id = config.controlled_bank
    if bank_id is None or not kept:
        return rules
    price: dict[str, Any] | None = None
    for name, figures in rules.items():
        rule, bank = get_rule(RuleId.parse(name).rule), RuleId.parse(name).bank
        if rule.form == bank_id.form and rule.adversary and (bank or config.main.get(rule.form)) == bank_id.name:
            figures["risk"] = _promise(rule, figures["worst_harm"], kept, units)
            if rule.name == PRICED:
                figures["risk"]["price"] = price = price or _price(rule, kept)
    return rules


def _promise(rule: Rule, harm: float, kept: Sequence[tuple[RiskControl, Parts]], units: int) -> dict[str, Any]:
    """Return the promise that a rule keeps, and the harm of its worst router."""
    assert rule.adversary is not None
    controls = [control for control, _ in kept]
    first, grouped = controls[0], controls[0].groups is not None
    cutoffs = [control.cutoff_in(rule.adversary) for control in controls]
    promise = {
        "risk": max(control.risk for control in controls),
        "confidence": first.confidence,
        "score": first.score,
        "by": first.by,
        "budget": first.budget,
        "cutoff": None if None in cutoffs else fmean(float(value or 0) for value in cutoffs),
        "calibration": min(control.units for control in controls),
        "owners": sorted({name for control in controls for name in control.owners}),
        "harm": _interval(harm, units, grouped),
        "active": fmean(float(parts.active(rule.adversary).double().mean()) for _, parts in kept),
    }
    routing = [harm_figures(rule, parts).get("routing_harm") for _, parts in kept]
    known = [share for share in routing if share is not None]
    if len(known) == len(kept):
        promise["routing_harm"] = _interval(fmean(known), units, grouped)
    if first.by == "domain":
        promise["domains"] = _domains([control.by_domain(parts, rule) for control, parts in kept], first.budget)
    return promise


def _price(rule: Rule, kept: Sequence[tuple[RiskControl, Parts]]) -> dict[str, Any]:
    """Return the accuracy of a rule at larger risks, with the budget `routing`, and where no cut-off excludes anything.

    All are means over the seeds, on the test split; `routing` is None where the domains of the calibration examples are
    not known, and the present accuracy where the budget is this one already.
    """

    def accuracy(risk: float | None = None, budget: str | None = None) -> float:
        """Return the accuracy at another promise; without a risk that of all experts, cut off by nothing."""
        shares = []
        for control, parts in kept:
            cutoffs = NO_CUTOFFS
            if risk is not None:
                promise = (control.confidence, control.by, control.small, budget or control.budget)
                cutoffs = control.at(risk, *promise).cutoffs_for(parts.base, parts.named)
            answers = predict(rule, replace(parts, cutoffs=cutoffs))
            shares.append(float((answers == parts.true_labels()).double().mean()))
        return fmean(shares)

    now = max(control.risk for control, _ in kept)
    least = max(_smallest_risk(control) for control, _ in kept)
    known = all(control.mistakes is not None for control, _ in kept)
    return {
        "risks": {f"{risk:g}": accuracy(risk) for risk in LARGER_RISKS if risk > now and risk >= least},
        "routing": accuracy(now, "routing") if known else None,
        "uncut": accuracy(),
    }


def _smallest_risk(control: RiskControl) -> float:
    """Return the smallest risk that the calibration examples support."""
    confidence = control.confidence if control.groups is None else group_confidence(control.confidence)
    return smallest_risk(control.units, confidence)


def _interval(share: float, units: int, grouped: bool = False) -> dict[str, float]:
    low, high = group_interval(share * units, units) if grouped else exact_interval(round(share * units), units)
    return {"mean": share, "low": low, "high": high}


def _domains(by_seed: Sequence[Mapping[str, dict[str, Any]]], budget: str) -> dict[str, dict[str, Any]]:
    """Return the promise of every domain: means over the seeds, with the interval of the examples of one seed."""
    domains: dict[str, dict[str, Any]] = {}
    for name in by_seed[0]:
        seeds = [figures[name] for figures in by_seed if name in figures]
        examples = min(one["examples"] for one in seeds)
        shares = {key: [one[key] for one in seeds if one[key] is not None] for key in SHARES}
        domain: dict[str, Any] = {
            "calibration": min(one["calibration"] for one in seeds),
            "together": sorted({other for one in seeds for other in one["together"]}),
            "silent": all(one["cutoff"] is None for one in seeds),
            "examples": examples,
            **{key: fmean(values) if values else None for key, values in shares.items()},
        }
        bounded = domain["harm" if budget == "harm" else "routing_harm"]
        interval = _interval(bounded, examples) if bounded is not None and examples else {"low": None, "high": None}
        domain |= {"low": interval["low"], "high": interval["high"]}
        if true := [one["true"] for one in seeds if "true" in one and one["true"]["harm"] is not None]:
            count, share = min(one["examples"] for one in true), fmean(one["harm"] for one in true)
            domain["true"] = {"examples": count, **_interval(share, count)}
        domains[name] = domain
    return domains


def describe_quarantine(control: RiskControl) -> dict[str, dict[str, Any]]:
    """Return the trial of every expert that is in quarantine or admitted by the user, by its name."""
    tried = zip(control.names, control.trials, strict=False)
    return {name: asdict(trial) for name, trial in tried if trial.quarantined or trial.admitted}


def quarantine(controls: Mapping[int, RiskControl]) -> list[dict[str, Any]]:
    """Return what `describe_quarantine` returns for all seeds, each trial with its expert and its seed."""
    return [
        {"expert": name, "seed": seed, **trial}
        for seed, control in controls.items()
        for name, trial in describe_quarantine(control).items()
    ]
