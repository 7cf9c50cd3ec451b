"""Abstention: a score that says how much an input looks like any known class, with a conformal cut-off.

The score of an input is its largest cosine similarity to the mean features of a class. On n held-out inputs of known
classes the cut-off is the ⌊rate · (n + 1)⌋-th smallest score; a new input of a known class lies below it with
probability at most `rate`, for any data distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from redx.errors import RedxError


def class_means(features: Tensor, labels: Tensor) -> Tensor:
    """Return the direction of the mean features of every class that occurs: (N, E) and (N,) to (M, E).

    Examples
    --------
    >>> class_means(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 5]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    directions = normalize(features, dim=-1)
    return normalize(torch.stack([directions[labels == label].mean(0) for label in labels.unique()]), dim=-1)


def familiarity(features: Tensor, means: Tensor) -> Tensor:
    """Return the largest cosine similarity to a class: (N, E) and (M, E) to (N,)."""
    return (normalize(features, dim=-1) @ means.T).amax(-1)


def abstention_cutoff(scores: Tensor, rate: float) -> float:
    """Return the score below which an input counts as belonging to no known class.

    Parameters
    ----------
    scores
        Scores of n held-out inputs of known classes, (n,).
    rate
        Largest share of inputs of known classes that may look unfamiliar, above 0 and below 1.

    Raises
    ------
    RedxError
        Where the rate is no such share, or there are too few held-out inputs for it.

    Examples
    --------
    >>> abstention_cutoff(torch.arange(99.0), rate=0.05)
    4.0
    """
    if not 0 < rate < 1:
        raise RedxError(f"A rate of false abstentions lies between 0 and 1, not {rate:g}; choose one such as 0.05.")
    rank = math.floor(rate * (len(scores) + 1) + 1e-9)
    if rank < 1:
        raise RedxError(
            f"A rate of {rate:g} cannot be promised with {len(scores)} calibration examples; "
            f"choose at least {math.ceil(1e4 / (len(scores) + 1)) / 1e4:g}."
        )
    return float(scores.sort().values[rank - 1])
