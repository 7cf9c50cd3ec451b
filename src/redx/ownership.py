"""When an expert may speak: a score of its own, with a conformal cut-off.

Expert k scores how much an example looks like its own domain: by the logits of its own classes against all others, or
by a score learned for this alone. On held-out examples outside its domain (n of them) the
cut-off is `τ_k`, the ⌈(n+1)(1-α)⌉-th smallest score. It speaks only where its score exceeds τ_k; else its residual is
zero. A new example from outside its domain exceeds τ_k with probability at most α, whatever the distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from redx.errors import RedxError


def score_classes(logits: Tensor, own: Tensor) -> Tensor:
    """How far each expert takes an example for one of its own classes: (N, K, C) and (K, C) to (N, K)."""
    inside = logits.masked_fill(~own, -torch.inf).logsumexp(-1)
    return inside - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def score_against(scores: Tensor, answers: Tensor, own: Tensor) -> Tensor:
    """The same scores, but minus infinity where the base's answer is one of the expert's own classes already.

    There an expert has little to mend. Strangers that the base takes for its own would use up most of α, although the
    base is wrong about them with or without it; so α is spent where speaking can change something.
    """
    return scores.masked_fill(own[:, answers].T, -torch.inf)


def cutoff(calibration: Tensor, alpha: float) -> float:
    """τ from the scores of held-out examples outside the domain; infinite where they are too few for this α."""
    if not 0 < alpha <= 1:
        raise RedxError(f"α is a share above 0 and at most 1, not {alpha}; choose one such as 0.001.")
    count = len(calibration)
    place = math.ceil((count + 1) * (1 - alpha) - 1e-9)  # -1e-9: (n+1)(1-α) is often whole but for rounding
    if place > count:
        return math.inf
    return float(calibration.sort().values[place - 1]) if place else -math.inf


def speaks(scores: Tensor, cutoffs: Tensor) -> Tensor:
    """Where each expert may speak: (N, K) scores and (K,) cut-offs to (N, K)."""
    return scores > cutoffs


def out_of_turn(spoken: Tensor, domains: Tensor) -> Tensor:
    """The share of examples outside its domain on which each expert speaks all the same: (K,)."""
    outside = domains[:, None] != torch.arange(spoken.shape[1])
    return (spoken & outside).double().sum(0) / outside.double().sum(0).clamp_min(1)
