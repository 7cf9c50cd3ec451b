"""Confidences: how sure an expert is that an example is its own and that its answer is right.

Risk control lets an expert contribute only where its confidence exceeds a cut-off. Every score here is a function of
the base's logits, the experts' residuals and their ownership scores; larger means surer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from redx.errors import RedxError

LARGEST = 1e4  # scores are bounded by this, so that their sums stay finite


def answer_log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of the most probable class against all others: (..., C) to (...).

    For a regression (C = 1) no class is more probable than another, and the log-odds are zero.

    Examples
    --------
    >>> answer_log_odds(torch.tensor([[0.0, 0.0]]))
    tensor([0.])
    """
    if logits.shape[-1] == 1:
        return logits.new_zeros(logits.shape[:-1])
    best = logits.max(-1)
    others = logits.scatter(-1, best.indices[..., None], -torch.inf).logsumexp(-1)
    return (best.values - others).clamp(-LARGEST, LARGEST)


def _ownership(base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    return claims


def _answer(base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    return answer_log_odds(base[:, None] + residuals)


def _both(base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    return claims + _answer(base, residuals, claims)


def _gain(base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    return _answer(base, residuals, claims) - answer_log_odds(base)[:, None]


def _all(base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    return claims + _gain(base, residuals, claims)


SCORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ownership": _ownership,  # log-odds that the example belongs to the expert's domain
    "answer": _answer,  # log-odds of the expert's own answer
    "both": _both,  # their sum
    "gain": _gain,  # log-odds of the expert's own answer less those of the base's answer
    "all": _all,  # ownership plus gain
}


def confidences(score: str, base: Tensor, residuals: Tensor, claims: Tensor) -> Tensor:
    """Return the confidence of every expert on every example.

    Parameters
    ----------
    score
        A key of `SCORES`: ownership, answer, both (their sum), gain (answer less the base's), or all (ownership and
        gain).
    base
        Logits of the base, (N, C).
    residuals
        Residuals of the experts, (N, K, C).
    claims
        Ownership scores of the experts, (N, K): log-odds that an example belongs to the expert's domain.

    Returns
    -------
    Tensor
        Confidences of shape (N, K).

    Examples
    --------
    >>> base, residuals, claims = torch.zeros(1, 2), torch.tensor([[[0.0, 3.0]]]), torch.tensor([[2.0]])
    >>> confidences("both", base, residuals, claims)
    tensor([[5.]])
    """
    if score not in SCORES:
        raise RedxError(f"There is no score {score!r}; choose one of {', '.join(SCORES)}.")
    return SCORES[score](base, residuals, claims.clamp(-LARGEST, LARGEST))
