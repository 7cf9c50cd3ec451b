"""Ownership: a score that says whether an example belongs to an expert's domain.

Expert k scores an example either by the logits of its own classes against all other classes, or by a score that is
trained for this alone. The scores are the gates of the router `keys`, and risk control takes confidences from them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redx.config import OwnershipConfig
from redx.errors import RedxError
from redx.io.files import Tensors
from redx.models.banks import MISFIT, MLPBank, fill_bank, load_bank, run_bank
from redx.models.base import Base
from redx.models.fitting import expected_shapes


class OwnershipScorer:
    """The ownership score of one expert.

    Parameters
    ----------
    config
        How the score is computed.
    tensors
        The expert's `ownership` tensors: the scorer's weights, and `classes` (C,) where it scores by classes.
    base
        The frozen base.
    """

    def __init__(self, config: OwnershipConfig, tensors: Tensors, base: Base) -> None:
        by_class = config.kind == "classes"
        self.base, own = base, tensors.get("classes", torch.empty(0))
        sizes = [base.width, config.bank.hidden, 1]
        shapes = {} if by_class else expected_shapes(lambda: MLPBank(1, sizes))
        wrong = [name for name, shape in shapes.items() if name not in tensors or tensors[name].shape != shape[1:]]
        if wrong or (by_class and own.shape != (base.outputs,)):
            raise RedxError(MISFIT)
        self.scorer = load_bank(config.bank, [tensors], base) if by_class else MLPBank(1, sizes)
        fill_bank(self.scorer, [tensors])
        self.classes = own[None].bool() if by_class else None  # (1, C), which classes are its own

    def ownership_scores(self, h: Tensor) -> Tensor:
        """Return how much each example looks like the expert's domain, (N, E) to (N,); the gates of `keys`."""
        outputs = run_bank(self.scorer, h)
        if self.classes is None:
            return outputs[:, 0, 0]
        return own_class_score(self.base.classify(h)[:, None] + outputs, self.classes)[:, 0]


def own_class_score(logits: Tensor, own: Tensor) -> Tensor:
    """Return the log-odds of an expert's own classes against all others: (N, K, C) and (K, C) to (N, K)."""
    own = own.to(logits.device)
    inside = logits.masked_fill(~own, -torch.inf).logsumexp(-1)
    return inside - logits.masked_fill(own, -torch.inf).logsumexp(-1)
