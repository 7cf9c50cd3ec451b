"""Certificates for the outputs of any model: a parts file, or arrays, to radii, curves, noise and a risk cut-off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, noise
from redx.composition.confidence import confidences
from redx.composition.evaluation import certify, noisy_weights, predict
from redx.composition.metrics import wilson_interval
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.parts_files import read_parts_file
from redx.composition.risk import check_risk, harm_figures, harm_thresholds, risk_cutoff
from redx.composition.rules import RULES, Rule, get_rule
from redx.errors import RedxError
from redx.seeding import generator

QUANTILES = (0.01, 0.1, 0.5)  # of the radii
SCORES = ("gain", "answer")  # confidences that need nothing but base and residuals


@dataclass(frozen=True)
class PartsReport:
    """What `certify_parts` measures.

    Attributes
    ----------
    rows
        Indices of the test examples in the given record, (M,); all N rows where nothing was set aside.
    predicted, radius
        Predictions of these examples and their certified radii ε*, both of shape (M,).
    figures
        All other results, which can be written as JSON; `redx certify --parts` prints them.
    """

    rows: Tensor
    predicted: Tensor
    radius: Tensor
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, which hold numbers, texts, lists and dicts only."""
        return self.figures


def certify_parts(
    parts: Parts | Path | str,
    rule: str = "red",
    *,
    epsilons: Sequence[float] = certificate.EPSILONS,
    kinds: Sequence[str] = tuple(noise.NOISES),
    levels: Sequence[float] = noise.LEVELS,
    risk: float | None = None,
    confidence: float | None = None,
    calibration: Parts | Path | str | None = None,
    share: float = 0.5,
    seed: int = 0,
    score: str = "gain",
) -> PartsReport:
    """Return exact certificates, noise curves and, if wanted, a risk cut-off for the outputs of any model.

    Parameters
    ----------
    parts
        The outputs, or a parts file as `read_parts_file` reads it.
    rule
        How the model composes them: red, fixed, sum or red-oracle for residuals on a base; moe, uniform or oracle for
        standalone experts.
    epsilons
        Values of ε for certified accuracy.
    kinds, levels
        Kinds and levels of routing noise.
    risk
        Bound on the harm of the worst router; None sets no cut-off.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    calibration
        Outputs on examples that nothing was trained or chosen on, for the cut-off; None sets rows of `parts` aside.
    share, seed
        Share of the rows that is set aside where `calibration` is None, and the seed of the draw.
    score
        Confidence of the experts where the record has none: `gain` (log-odds of the expert's answer less those of the
        base's answer) or `answer`.

    Returns
    -------
    PartsReport
        Predictions and radii of the test rows, and all figures.

    Raises
    ------
    RedxError
        If a file or an option is wrong, or if a risk is asked for that the examples or the rule do not support.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[9.0, -9.0]]), torch.tensor([0]), torch.tensor([0]))
    >>> report = certify_parts(parts, epsilons=[0.5, 1])
    >>> report.radius, report.figures["certified"]
    (tensor([0.6667]), {'0.5': 1.0, '1': 0.0})
    """
    chosen, record = _standalone_or_residual(rule), _to_parts(parts)
    rows, promise = torch.arange(len(record)), None
    for level in levels:
        noise.check_level(level)
    if risk is None and (calibration is not None or confidence is not None):
        raise RedxError("Calibration examples and a confidence need a risk; give one, such as 0.01.")
    if risk is not None:
        rows, record, promise = _control_risk(chosen, record, risk, confidence, calibration, share, seed, score)
    certified = certify(chosen, record)
    right = certified.predicted == record.labels
    curves: dict[str, dict[str, float]] = {}
    for kind in map(noise.get_noise, kinds):
        for level in levels:
            weights = noisy_weights(chosen, record, kind, level, generator(seed, "noise", kind.name, level))
            noisy = predict(chosen, record, weights) == record.labels
            curves.setdefault(kind.name, {})[f"{level:g}"] = float(noisy.double().mean())
    low, high = wilson_interval(float(right.double().mean()), len(record))
    radii = certified.radius.double()
    figures = {
        "rule": rule,
        "examples": len(record),
        "experts": record.experts,
        "outputs": record.base.shape[1],
        "accuracy": {"mean": float(right.double().mean()), "low": low, "high": high},
        "base": float((predicted_classes(record.base) == record.labels).double().mean()) if chosen.keeps_base else None,
        "per_domain": _per_domain(right, record.domains),
        "certified": {f"{e:g}": certificate.certified_accuracy(certified.radius, right, e) for e in epsilons},
        "radius": {f"{q:g}": float(radii.sort().values[int(q * (len(radii) - 1))]) for q in QUANTILES},
        "breakable": float((radii < 1).double().mean()),
        "noise": curves,
        "risk": promise,
    }
    return PartsReport(rows, certified.predicted, certified.radius, figures)


def _to_parts(parts: Parts | Path | str) -> Parts:
    return parts if isinstance(parts, Parts) else read_parts_file(parts)


def _standalone_or_residual(name: str) -> Rule:
    rule = get_rule(name)
    if rule.form not in ("residual", "standalone"):
        possible = ", ".join(rule.name for rule in RULES.values() if rule.form in ("residual", "standalone"))
        raise RedxError(f"The rule {name!r} reads one head of its own, not experts; choose one of {possible}.")
    return rule


def _control_risk(
    rule: Rule,
    parts: Parts,
    risk: float,
    confidence: float | None,
    calibration: Parts | Path | str | None,
    share: float,
    seed: int,
    score: str,
) -> tuple[Tensor, Parts, dict[str, Any]]:
    """Return the test rows, their record with cut-offs, and the promise with what the test rows show."""
    if calibration is None:
        rows, held = _divide(len(parts), share, seed)
        test, held_out = parts.only(rows), parts.only(held)
    else:
        rows, test, held_out = torch.arange(len(parts)), parts, _to_parts(calibration)
        if held_out.residuals.shape[1:] != parts.residuals.shape[1:]:
            raise RedxError(
                "The calibration examples come from other experts or classes; give outputs of the same model."
            )
    own_score = test.confidences is not None
    if own_score != (held_out.confidences is not None):
        raise RedxError("Only one of the two records has confidences; give them for both or for neither.")
    test, held_out = _with_confidences(test, score), _with_confidences(held_out, score)
    check_risk(risk, len(held_out), confidence)
    cutoff = risk_cutoff(harm_thresholds(rule, held_out), risk, confidence)
    controlled = replace(test, cutoffs=Cutoffs(cutoff, cutoff))
    promise = {
        "risk": risk,
        "confidence": confidence,
        "score": "as given" if own_score else score,
        "cutoff": cutoff if math.isfinite(cutoff) else str(cutoff),
        "calibration": len(held_out),
        "divided": None if calibration is not None else {"share": share, "seed": seed},
        "before": harm_figures(rule, test),
        "after": harm_figures(rule, controlled),
    }
    return rows, controlled, promise


def _divide(examples: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows for the test and for calibration, both in ascending order, drawn by a seed."""
    count = round(share * examples) if 0 < share < 1 else 0
    if not 0 < count < examples:
        raise RedxError(
            f"A share of {share:g} of {examples} rows leaves no calibration or no test; choose one like 0.5."
        )
    order = torch.randperm(examples, generator=generator(seed, "calibration"))
    return order[count:].sort().values, order[:count].sort().values


def _with_confidences(parts: Parts, score: str) -> Parts:
    """Return the record with the confidences that it brings, or else with computed ones."""
    if parts.confidences is not None:
        return replace(parts, cutoffs=None)
    if score not in SCORES:
        raise RedxError(f"There is no score {score!r} of base and residuals alone; choose one of {', '.join(SCORES)}.")
    values = [confidences(score, part.base, part.residuals, part.gates) for _, part in parts.chunks()]
    return replace(parts, confidences=torch.cat(values), cutoffs=None)


def _per_domain(right: Tensor, domains: Tensor) -> dict[str, float]:
    """Return the accuracy in every domain that has an example."""
    names, index = domains.unique(return_inverse=True)
    totals = torch.bincount(index, minlength=len(names))
    shares = torch.bincount(index, right.double(), minlength=len(names)) / totals
    return dict(zip(map(str, names.tolist()), shares.tolist(), strict=True))
