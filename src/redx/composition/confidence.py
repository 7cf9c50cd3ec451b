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


def _ownership(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    return ownership


def _answer(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    return answer_log_odds(base[:, None] + residuals)


def _both(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    return ownership + _answer(base, residuals, ownership)


def _gain(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    examples, experts, classes = residuals.shape
    logits = residuals.new_empty(examples, experts + 1, classes)  # of the base, then of the base with each expert
    logits[:, 0] = base
    torch.add(base[:, None], residuals, out=logits[:, 1:])
    odds = answer_log_odds(logits)
    return odds[:, 1:] - odds[:, :1]


def _all(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    return ownership + _gain(base, residuals, ownership)


def contest(ownership: Tensor) -> Tensor:
    """Return the log-odds of every expert against all other experts and against none of them, (N, K).

    Ownership scores are log-odds, so "none of the experts" has the score 0.

    Examples
    --------
    >>> contest(torch.tensor([[2.0, -50.0]]))
    tensor([[  2.0000, -52.1269]])
    """
    if not ownership.shape[1]:
        return ownership
    every = torch.nn.functional.pad(ownership, (0, 1))  # (N, K + 1)
    total = every.logsumexp(-1, keepdim=True)
    first = every.argmax(-1, keepdim=True)
    without_first = every.scatter(1, first, -torch.inf).logsumexp(-1, keepdim=True)
    others = total + torch.log1p(-(every - total).exp().clamp(0, 0.75))  # all but the first have at most one half
    others = others.scatter(1, first, without_first)
    return (every - others)[:, :-1]


def _contest(base: Tensor, residuals: Tensor, ownership: Tensor) -> Tensor:
    return contest(ownership) + _gain(base, residuals, ownership)


SCORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ownership": _ownership,  # log-odds that the example belongs to the expert's domain
    "answer": _answer,  # log-odds of the expert's own answer
    "both": _both,  # their sum
    "gain": _gain,  # log-odds of the expert's own answer less those of the base's answer
    "all": _all,  # ownership plus gain
    "contest": _contest,  # ownership against that of all other experts, plus gain
}


def confidences(
    score: str,
    base: Tensor,
    residuals: Tensor,
    ownership: Tensor,
    columns: Tensor | None = None,
    own: Tensor | None = None,
    quarantined: Tensor | None = None,
) -> Tensor:
    """Return the confidence of every expert on every example; minus infinity where an expert is silent.

    An expert is silent everywhere in quarantine, and elsewhere where its own answer is none of its own classes.

    Parameters
    ----------
    score
        A key of `SCORES`: ownership, answer, both (their sum), gain (answer less the base's), all (ownership and gain),
        or contest (ownership against that of all other experts, and gain).
    base
        Logits of the base, (N, C).
    residuals
        Residuals of the experts, (N, K, C).
    ownership
        Ownership scores of the experts, (N, K): log-odds that an example belongs to the expert's domain.
    columns
        Where residuals are those of some experts alone, (N, T, C): their columns among the scores, (N, T).
    own
        Which classes are each expert's own, (K, C); None where experts share classes.
    quarantined
        Which experts are in quarantine, (K,): they are silent, and the others do not compete with them.

    Returns
    -------
    Tensor
        Confidences of shape (N, K), or (N, T).

    Examples
    --------
    >>> base, residuals, ownership = torch.zeros(1, 2), torch.tensor([[[0.0, 3.0]]]), torch.tensor([[2.0]])
    >>> confidences("both", base, residuals, ownership)
    tensor([[5.]])
    """
    if score not in SCORES:
        raise RedxError(f"There is no score {score!r}; choose one of {', '.join(SCORES)}.")
    ownership = ownership.clamp(-LARGEST, LARGEST)
    if quarantined is not None:
        ownership = ownership.masked_fill(quarantined, -torch.inf)
    if columns is None:
        sure = SCORES[score](base, residuals, ownership)
    elif score == "contest":  # all of them compete, also those without residuals
        sure = contest(ownership).gather(1, columns) + _gain(base, residuals, ownership)
    else:
        sure = SCORES[score](base, residuals, ownership.gather(1, columns))
    if quarantined is not None:
        sure = sure.masked_fill(quarantined if columns is None else quarantined[columns], -torch.inf)
    if own is not None and residuals.numel():
        experts = torch.arange(residuals.shape[1], device=own.device) if columns is None else columns
        knows = own[experts, (base[:, None] + residuals).argmax(-1)]  # (N, K)
        sure = sure.masked_fill(~knows, -torch.inf)
    return sure
