"""Risk control: a cut-off on the experts' confidences that bounds the harm of the worst router.

Expert k contributes to example i only where its confidence s_ik exceeds the cut-off λ. The harm of example i,

    L_i(λ) = 1 if the base is right on it and some router makes the composed answer wrong, else 0,

never increases with λ, since a larger λ only deactivates experts. It is 1 exactly below the example's threshold, the
largest λ at which some router can still do harm. On n held-out examples that nothing was trained or chosen on,

    λ̂ = inf{ λ : (Σ_i L_i(λ) + 1) / (n + 1) ≤ risk }

keeps the expected harm of a new example at most at `risk`, for any data distribution, any number of experts and any
router (conformal risk control; Angelopoulos et al.). The second form replaces the left side by the exact binomial upper
bound of the harm: then the harm is at most `risk` with probability `confidence` over the draw of the held-out examples.
"""

from __future__ import annotations

import math

from torch import Tensor

from redx.composition.evaluation import certify, worst_harm
from redx.composition.metrics import exact_interval, upper_bound
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule
from redx.composition.thresholds import harm_thresholds as harm_thresholds  # part of the interface of this module
from redx.errors import RedxError


def smallest_risk(examples: int, confidence: float | None = None) -> float:
    """Return the smallest risk that this many calibration examples can support.

    Parameters
    ----------
    examples
        Number of calibration examples.
    confidence
        None for the expected form; otherwise the probability with which the bound has to hold.

    Examples
    --------
    >>> smallest_risk(99)
    0.01
    >>> round(smallest_risk(99, confidence=0.95), 4)
    0.0298
    """
    _check_confidence(confidence)
    if confidence is None:
        return 1 / (examples + 1)
    return 1 - (1 - confidence) ** (1 / examples) if examples else 1.0


def allowed_harm(examples: int, risk: float, confidence: float | None = None) -> int:
    """Return how many calibration examples may be harmed; -1 where even none does not support the risk.

    Examples
    --------
    >>> allowed_harm(999, risk=0.01), allowed_harm(999, risk=0.01, confidence=0.95), allowed_harm(50, risk=0.01)
    (9, 4, -1)
    """
    if not 0 <= risk <= 1:
        raise RedxError(f"A risk lies between 0 and 1, not {risk}; choose one such as 0.01.")
    _check_confidence(confidence)
    if confidence is None:
        return min(examples, math.floor(risk * (examples + 1) - 1 + 1e-9))
    if risk == 1:
        return examples
    low, high = -1, examples  # the upper bound grows with the number of harmed examples
    while low < high:
        middle = (low + high + 1) // 2
        if upper_bound(middle, examples, confidence) <= risk:
            low = middle
        else:
            high = middle - 1
    return low


def check_risk(risk: float, examples: int, confidence: float | None = None) -> float:
    """Return a risk unchanged, or raise `RedxError` if it is none, or too small for so many calibration examples.

    Parameters
    ----------
    risk
        The bound on the harm.
    examples
        Number of calibration examples.
    confidence
        None for the expected form; otherwise the probability with which the bound has to hold.

    Examples
    --------
    >>> check_risk(0.01, examples=99)
    0.01
    """
    if not 0 <= risk <= 1:
        raise RedxError(f"A risk lies between 0 and 1, not {risk:g}; choose one such as 0.01.")
    smallest = smallest_risk(examples, confidence)
    if 0 < risk < smallest - 1e-12:
        at_least = math.ceil(smallest * 1e4) / 1e4
        raise RedxError(
            f"A risk of {risk:g} cannot be promised with {examples} calibration examples; "
            f"choose at least {at_least:g}, or give more validation examples."
        )
    return risk


def harm_figures(rule: Rule, parts: Parts) -> dict[str, float]:
    """Return what the worst router costs on these examples.

    Parameters
    ----------
    rule
        The rule that composes base and experts.
    parts
        The record of N examples; where it has cut-offs, they apply.

    Returns
    -------
    dict
        `base`, `clean` and `worst`: accuracy of the base, of the rule, and of the rule under its worst router; `harm`:
        share of examples that the base answers correctly and the rule, with some router, does not, with the exact 95 %
        interval from `low` to `high`.

    Examples
    --------
    >>> import torch
    >>> from redx.composition.rules import get_rule
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[-9.0, 9.0]]), torch.tensor([0]), torch.tensor([1]))
    >>> figures = harm_figures(get_rule("red"), parts)
    >>> figures["clean"], figures["worst"], figures["harm"]
    (1.0, 0.0, 1.0)
    """
    certified = certify(rule, parts)
    right = certified.predicted == parts.labels
    harmed = int(worst_harm(parts, certified).sum())
    low, high = exact_interval(harmed, len(parts))
    return {
        "base": float((predicted_classes(parts.base) == parts.labels).double().mean()),
        "clean": float(right.double().mean()),
        "worst": float((right & (certified.radius >= 1)).double().mean()),
        "harm": harmed / len(parts),
        "low": low,
        "high": high,
    }


def risk_cutoff(thresholds: Tensor, risk: float, confidence: float | None = None) -> float:
    """Return the smallest cut-off that keeps the harm of the worst router at the risk.

    Parameters
    ----------
    thresholds
        Thresholds of n calibration examples, (n,), as `harm_thresholds` returns them.
    risk
        The bound on the harm, from 0 to 1.
    confidence
        None bounds the expected harm; otherwise the harm is at most `risk` with this probability.

    Returns
    -------
    float
        The cut-off λ̂: minus infinity where every expert may contribute everywhere, infinity where none may because
        there are too few calibration examples for this risk.

    Examples
    --------
    >>> import torch
    >>> risk_cutoff(torch.arange(99.0), risk=0.1)
    89.0
    >>> risk_cutoff(torch.arange(5.0), risk=0.01)
    inf
    """
    allowed = allowed_harm(len(thresholds), risk, confidence)
    if allowed < 0:
        return math.inf
    if allowed >= len(thresholds):
        return -math.inf
    return float(thresholds.topk(allowed + 1).values[-1])


def _check_confidence(confidence: float | None) -> None:
    if confidence is not None and not 0 < confidence < 1:
        raise RedxError(f"A confidence lies between 0 and 1, not {confidence}; choose one such as 0.95.")
