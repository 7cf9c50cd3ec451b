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

from redx.composition.parts import predicted_classes
from redx.config import OwnershipConfig
from redx.errors import RedxError
from redx.io.files import Tensors
from redx.models import banks
from redx.models.banks import MLPBank, build_bank
from redx.models.base import Base


def own_class_score(logits: Tensor, own: Tensor) -> Tensor:
    """How far each expert takes an example for one of its own classes: (N, K, C) and (K, C) to (N, K)."""
    inside = logits.masked_fill(~own, -torch.inf).logsumexp(-1)
    return inside - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def mask_agreement(scores: Tensor, answers: Tensor, own: Tensor) -> Tensor:
    """The same scores, but minus infinity where the base's answer is one of the expert's own classes already.

    There an expert has little to mend. Strangers that the base takes for its own would use up most of α, although the
    base is wrong about them with or without it; so α is spent where speaking can change something.
    """
    return scores.masked_fill(own[:, answers].T, -torch.inf)


def conformal_cutoff(calibration: Tensor, alpha: float) -> float:
    """τ from the scores of held-out examples outside the domain; infinite where they are too few for this α."""
    if not 0 < alpha <= 1:
        raise RedxError(f"α is a share above 0 and at most 1, not {alpha}; choose one such as 0.001.")
    count = len(calibration)
    place = math.ceil((count + 1) * (1 - alpha) - 1e-9)  # -1e-9: (n+1)(1-α) is often whole but for rounding
    if place > count:
        return math.inf
    return float(calibration.sort().values[place - 1]) if place else -math.inf


def is_active(scores: Tensor, cutoffs: Tensor) -> Tensor:
    """Where each expert may speak: (N, K) scores and (K,) cut-offs to (N, K)."""
    return scores > cutoffs


def false_activation_rate(spoken: Tensor, domains: Tensor) -> Tensor:
    """The share of examples outside its domain on which each expert speaks all the same: (K,)."""
    outside = domains[:, None] != torch.arange(spoken.shape[1])
    return (spoken & outside).double().sum(0) / outside.double().sum(0).clamp_min(1)


class OwnershipScorer:
    """One expert's score of what is its own, with the scores its cut-off is taken from."""

    def __init__(self, settings: OwnershipConfig, tensors: Tensors, base: Base) -> None:
        by_class = settings.score == "classes"
        self.base, self.contradict = base, settings.contradict
        self.scorer = (
            build_bank(settings.bank, 1, base) if by_class else MLPBank(1, [base.width, settings.bank.hidden, 1])
        )
        banks.fill_bank(self.scorer, [tensors])
        self.classes = tensors["classes"][None].bool() if by_class else None  # (1, C) which are its own
        self.calibration = tensors.get("calibration", torch.empty(0))  # (n,) scores of held-out examples of others

    def claims(self, h: Tensor) -> Tensor:  # (N, E) -> (N,)
        """How much each example looks like its own: what `keys` routes by."""
        said = banks.run_bank(self.scorer, h)
        if self.classes is None:
            return said[:, 0, 0]
        return own_class_score(self.base.classify(h)[:, None] + said, self.classes)[:, 0]

    def scores(self, h: Tensor) -> Tensor:  # (N, E) -> (N,)
        """The same, where it has something to say: what its cut-off is for."""
        claims = self.claims(h)
        if self.classes is None or not self.contradict:
            return claims
        return mask_agreement(claims[:, None], predicted_classes(self.base.classify(h)), self.classes)[:, 0]

    def cutoff(self, alpha: float) -> float:
        return conformal_cutoff(self.calibration, alpha)

    def speaks(self, h: Tensor, alpha: float) -> Tensor:  # (N, E) -> (N,)
        return is_active(self.scores(h), torch.tensor(self.cutoff(alpha)))
