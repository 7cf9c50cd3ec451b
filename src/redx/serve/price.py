"""The price of safety: accuracy at every risk, on examples to choose a risk by."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.risk import RiskControl, harm_outcomes
from redx.composition.rules import Rule
from redx.errors import RedxError

STEPS = 60  # risks that are shown by domain, at most


def price_of_safety(rule: Rule, parts: Parts, control: RiskControl) -> dict[str, Any]:
    """Return the exact figures of a rule at every cut-off that some risk leads to.

    Parameters
    ----------
    rule
        A rule under risk control, such as `red`.
    parts
        The record of examples with confidences; its cut-offs do not count.
    control
        The risk control that sets the cut-offs, with the thresholds of its examples. The page gives one that is set on
        these same examples to choose by, so that calibration examples play no part.

    Returns
    -------
    dict
        `rows`, from the smallest risk to the largest: each with the smallest risk that allows so many of the `held`
        examples of the control to be harmed, the cut-off, clean accuracy, accuracy under the worst router, and harm. A
        risk leads to the last row whose risk does not exceed it. By domain there are at most `STEPS` rows, without one
        cut-off, and `domain` is the accuracy under the worst router in the domain that it harms most.
    """
    region = rule.adversary
    if region is None or parts.confidences is None:
        raise RedxError(f"The rule {rule.name!r} has no risk control; choose red.")
    base = float((predicted_classes(parts.base) == parts.true_labels()).double().mean())
    about = {"rule": rule.name, "confidence": control.confidence, "held": control.examples, "examples": len(parts)}
    about |= {"base": base, "by": control.by, "budget": control.budget}
    if control.by == "domain":
        return about | {"rows": _rows_by_domain(rule, parts, control)}
    thresholds = control.counted(region).double().sort(descending=True).values
    finite = thresholds[thresholds.isfinite()]
    counts = _StepCounts(rule, parts, float(finite.min()) if len(finite) else math.inf)
    size, held = len(parts), control.examples
    nothing = {name: value / size for name, value in counts.at(math.inf).items()}
    rows: list[dict[str, Any]] = [{"risk": 0.0, "allowed": -1, "cutoff": None, **nothing}]
    previous = math.inf
    for allowed in range(held + 1):
        cutoff = float(thresholds[allowed]) if allowed < held else -math.inf
        if cutoff < previous:
            figures = {name: value / size for name, value in counts.at(cutoff).items()}
            risk = _needed_risk(allowed, held, control.confidence)
            rows.append({"risk": risk, "allowed": allowed, "cutoff": _finite(cutoff), **figures})
        previous = cutoff
        if cutoff == -math.inf:
            break
    return about | {"rows": rows}


def _rows_by_domain(rule: Rule, parts: Parts, control: RiskControl) -> list[dict[str, Any]]:
    """Return the figures at the risks at which the cut-off of some domain changes, or at some of them."""
    counts = {count for count in control.domain_counts if count} | {control.examples}
    steps = {_needed_risk(harmed, count, control.confidence) for count in counts for harmed in range(count + 1)}
    ordered = sorted(steps)
    if len(ordered) > STEPS:
        places = torch.logspace(0, math.log10(len(ordered)), STEPS).round().long() - 1
        ordered = [ordered[place] for place in places.clamp_max(len(ordered) - 1).unique().tolist()]
    silent = control.apply(parts)
    assert silent.confidences is not None
    rows = [
        _row_by_domain(rule, silent.with_confidences(silent.confidences, Cutoffs(math.inf, math.inf)), control, 0.0)
    ]
    for risk in ordered:
        with contextlib.suppress(RedxError):  # so small a risk is not supported
            at = control.at(risk, control.confidence)
            rows.append(_row_by_domain(rule, at.apply(parts), control, risk))
    return rows


def _row_by_domain(rule: Rule, parts: Parts, control: RiskControl, risk: float) -> dict[str, Any]:
    outcomes, domains = harm_outcomes(rule, parts).double(), control.domains_of(parts)
    by_domain = torch.stack([outcomes[domains == domain].mean(0) for domain in domains.unique().tolist()])
    worst = by_domain[by_domain[:, 3].argmax()]
    figures = dict(zip(("clean", "worst", "harm"), outcomes.mean(0)[1:].tolist(), strict=True))
    told = {"domain": float(worst[2]), "domain_harm": float(worst[3])}
    return {"risk": risk, "allowed": None if risk else -1, "cutoff": None, **figures, **told}


def _finite(cutoff: float) -> float | None:
    return cutoff if math.isfinite(cutoff) else None


def _needed_risk(harmed: int, examples: int, confidence: float | None) -> float:
    """Return the smallest risk at which so many harmed examples are allowed."""
    if confidence is None:
        return min(1.0, (harmed + 1) / (examples + 1))
    from scipy import stats

    return 1.0 if harmed >= examples else float(stats.beta.ppf(confidence, harmed + 1, examples - harmed))


class _StepCounts:
    """How many examples are right, right under any router, and harmed, as functions of the cut-off.

    An example changes only where the cut-off passes one of its K confidences. Confidences below every finite cut-off
    that is asked for count only where all experts contribute, so few of the K + 1 states of an example are evaluated.

    Parameters
    ----------
    rule, parts
        The rule, and the record of N examples.
    lowest
        The smallest finite cut-off that is asked for.
    """

    def __init__(self, rule: Rule, parts: Parts, lowest: float) -> None:
        assert parts.confidences is not None
        ordered = parts.confidences.sort(descending=True, dim=-1)
        rank = ordered.indices.argsort(-1)  # (N, K): 0 for the most confident expert
        reached = (parts.confidences > lowest).sum(-1)  # (N,): how many experts some finite cut-off lets contribute
        right = predicted_classes(parts.base) == parts.true_labels()
        states = [torch.stack([right, right, torch.zeros_like(right)], -1).double()]  # no expert: the base itself
        for active in range(1, parts.experts + 1):
            state = states[-1].clone()
            rows = (reached >= active) if active < parts.experts else torch.ones_like(right)
            if bool(rows.any()):
                state[rows] = _figures(rule, parts.only(rows), rank[rows] < active)
            states.append(state)
        steps = torch.stack(states, 1)  # (N, K + 1, 3)
        change = steps.diff(dim=1).flatten(0, 1)  # (N·K, 3): what happens below each confidence
        edges, order = ordered.values.double().flatten().sort(descending=True)
        self.edges = -edges.contiguous()  # ascending, for the search
        self.total = torch.cat([torch.zeros(1, 3, dtype=torch.double), change[order].cumsum(0)]) + steps[:, 0].sum(0)

    def at(self, cutoff: float) -> dict[str, float]:
        """Return the counts at one cut-off: experts contribute where their confidence exceeds it."""
        above = int(torch.searchsorted(self.edges, torch.tensor(-cutoff, dtype=torch.double)))
        clean, worst, harm = self.total[above].tolist()
        return {"clean": clean, "worst": worst, "harm": harm}


def _figures(rule: Rule, parts: Parts, active: Tensor) -> Tensor:
    """Return which examples are right, right under any router, and harmed, where only these experts contribute."""
    shown = replace(parts, residuals=parts.residuals * active[..., None], cutoffs=None)
    return harm_outcomes(rule, shown)[:, 1:].double()  # (N, 3)
