"""Ownership: a score that says whether an example belongs to an expert's domain, with a conformal cut-off.

Expert k scores an example either by the logits of its own classes against all other classes, or by a score that is
trained for this alone. On n held-out examples outside its domain the cut-off `τ_k` is the ⌈(n+1)(1-α)⌉-th smallest
score. The expert is active only where its score exceeds τ_k; elsewhere its residual is zero. A new example from outside
its domain exceeds τ_k with probability at most α, for any data distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from redx.composition.parts import predicted_classes
from redx.config import OwnershipConfig
from redx.errors import RedxError
from redx.io.files import Tensors
from redx.models.banks import MISFIT, MLPBank, fill_bank, load_bank, run_bank
from redx.models.base import Base
from redx.models.fitting import expected_shapes


class OwnershipScorer:
    """The ownership score of one expert, and the calibration scores that its cut-off is taken from.

    Parameters
    ----------
    config
        How the score is computed.
    tensors
        The expert's `ownership` tensors: the scorer's weights, `classes` (C,) where it scores by classes, and
        `calibration` (n,), the scores of held-out examples outside the domain.
    base
        The frozen base.
    """

    def __init__(self, config: OwnershipConfig, tensors: Tensors, base: Base) -> None:
        by_class = config.score == "classes"
        self.base, self.contradict = base, config.contradict
        own, self.calibration = tensors.get("classes", torch.empty(0)), tensors.get("calibration", torch.empty(0))
        sizes = [base.width, config.bank.hidden, 1]
        shapes = {} if by_class else expected_shapes(lambda: MLPBank(1, sizes))
        wrong = [name for name, shape in shapes.items() if name not in tensors or tensors[name].shape != shape[1:]]
        if wrong or self.calibration.ndim != 1 or (by_class and own.shape != (base.outputs,)):
            raise RedxError(MISFIT)
        self.scorer = load_bank(config.bank, [tensors], base) if by_class else MLPBank(1, sizes)
        fill_bank(self.scorer, [tensors])
        self.classes = own[None].bool() if by_class else None  # (1, C), which classes are its own
        self._cutoff: tuple[Tensor, float, float] | None = None  # the last cut-off, with what it was computed from

    def claims(self, h: Tensor) -> Tensor:
        """Return how much each example looks like the expert's domain, (N, E) to (N,); the gates of `keys`."""
        outputs = run_bank(self.scorer, h)
        if self.classes is None:
            return outputs[:, 0, 0]
        return own_class_score(self.base.classify(h)[:, None] + outputs, self.classes)[:, 0]

    def scores(self, h: Tensor) -> Tensor:
        """Return what is compared with the cut-off: (N, E) to (N,).

        These are the claims. With `contradict` they are minus infinity where the base's answer is one of the expert's
        own classes, so that the expert is active only where it contradicts the base.
        """
        claims = self.claims(h)
        if self.classes is None or not self.contradict:
            return claims
        return mask_agreement(claims[:, None], predicted_classes(self.base.classify(h)), self.classes)[:, 0]

    def cutoff(self, alpha: float) -> float:
        """Return the conformal cut-off for this α."""
        known = self._cutoff
        if known is None or known[0] is not self.calibration or known[1] != alpha:
            known = self._cutoff = self.calibration, alpha, conformal_cutoff(self.calibration, alpha)
        return known[2]

    def is_active(self, h: Tensor, alpha: float) -> Tensor:
        """Return where the score exceeds the cut-off: (N, E) to (N,)."""
        return self.scores(h) > torch.tensor(self.cutoff(alpha))


def own_class_score(logits: Tensor, own: Tensor) -> Tensor:
    """Return the log-odds of an expert's own classes against all others: (N, K, C) and (K, C) to (N, K)."""
    inside = logits.masked_fill(~own, -torch.inf).logsumexp(-1)
    return inside - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def mask_agreement(scores: Tensor, answers: Tensor, own: Tensor) -> Tensor:
    """Set scores, (N, K), to minus infinity where the base's answer is one of the expert's own classes already.

    There the expert has little to correct. Examples of other domains that the base takes for one of its classes would
    use up most of α, although the base is wrong about them anyway; so α is spent where the expert can change the
    answer. `answers` are the base's, (N,), and `own` marks the classes of each expert, (K, C).
    """
    return scores.masked_fill(own[:, answers].T, -torch.inf)


def conformal_cutoff(calibration: Tensor, alpha: float) -> float:
    """Return the cut-off that a new example from outside the domain exceeds with probability at most α.

    Parameters
    ----------
    calibration
        Scores of held-out examples outside the domain, (n,).
    alpha
        The probability, above 0 and at most 1.

    Returns
    -------
    float
        The ⌈(n+1)(1-α)⌉-th smallest score; infinite where n is too small for this α, so that the expert stays inactive.

    Examples
    --------
    >>> import torch
    >>> conformal_cutoff(torch.arange(99.0), alpha=0.1)
    89.0
    """
    if not 0 < alpha <= 1:
        raise RedxError(f"α is a share above 0 and at most 1, not {alpha}; choose one such as 0.001.")
    count = len(calibration)
    rank = math.ceil((count + 1) * (1 - alpha) - 1e-9)  # -1e-9: (n+1)(1-α) is often whole but for rounding
    if rank > count:
        return math.inf
    return float(calibration.sort().values[rank - 1]) if rank else -math.inf


def false_activation_rate(active: Tensor, domains: Tensor) -> Tensor:
    """Return the share of examples outside its domain on which each expert is active: (N, K) and (N,) to (K,)."""
    outside = domains[:, None] != torch.arange(active.shape[1])
    return (active & outside).double().sum(0) / outside.double().sum(0).clamp_min(1)
