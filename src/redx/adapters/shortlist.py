"""Shortlists of the vocabulary: only tokens that some router could put above the label are kept.

A margin is affine in the weights. A token that is below the label at the base and at every vertex of the simplex is
below it for every router, so it changes neither certificates nor thresholds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WIDTH = 64  # tokens of a shortlist


def shortlist(logits: Tensor, labels: Tensor, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Return logits over a shortlist of the vocabulary, and where the label stands in it.

    Parameters
    ----------
    logits
        Logits of the base and of K adapters, (1 + K, P, C).
    labels
        The next tokens, (P,).
    width
        Number of tokens that are kept for a position: the label, and those that come closest to it or above it.

    Returns
    -------
    tuple of Tensor
        Logits, (1 + K, P, 1 + K + width), or those given where they have no more columns, and the label's columns,
        (P,). The first 1 + K columns stand for all other tokens, each for those that do best in one row; in every row
        they hold the largest logit of these. So what is right at the base and at every vertex is exact, and for other
        weights no answer counts as right that is not; where no other token reaches the label, which is nearly
        everywhere, the shortlist is exact for all weights. The kept tokens are in the order of the vocabulary, so that
        ties are decided as before; a tie with one of the first columns is lost.

    Examples
    --------
    >>> rows = torch.tensor([[[5.0, 4.0, 0.0, -1.0, -2.0]], [[3.0, 4.0, 1.0, -9.0, -2.0]]])
    >>> shortlist(rows, torch.tensor([0]), width=2)[0].tolist()
    [[[-1.0, 0.0, 5.0, 4.0]], [[-9.0, 1.0, 3.0, 4.0]]]
    """
    count = len(logits)
    if logits.shape[-1] <= width + count:
        return logits, labels
    own = logits.gather(-1, labels.expand(count, -1)[..., None])  # (1 + K, P, 1)
    enough = logits.topk(max(1, width // count)).values[..., -1:]  # of every row, its share of the list
    lead, row = (logits - enough).max(0)  # (P, C): how far a token is above that, and in which row
    lead.scatter_(-1, labels[:, None], math.inf)  # the label itself is always kept
    tokens = lead.topk(width).indices.sort(-1).values  # (P, width)
    row.scatter_(-1, tokens, -1)
    columns = []
    for index in range(count):
        largest = logits.masked_fill(row != index, -math.inf).amax(-1, keepdim=True)
        columns.append(torch.where(largest.isinf(), own - 1, largest))  # no token: one that never reaches the label
    places = (tokens == labels[:, None]).int().argmax(-1) + count
    return torch.cat([*columns, logits.gather(-1, tokens.expand(count, -1, -1))], -1), places
