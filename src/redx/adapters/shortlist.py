"""Exact shortlists of the vocabulary: only tokens that some router could put above the label are kept.

A margin is affine in the weights. A token that is below the label by more than the rounding error at the base and at
every vertex of the simplex is below it for every router, so that it changes neither certificates nor thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from redx.composition.parts import Parts

WIDTH = 64  # tokens of a shortlist
SLACK = 1e-3  # of the largest logit: far above the rounding error of a margin


def shortlist(
    logits: Tensor, labels: Tensor, confidences: Tensor, width: int = WIDTH
) -> Iterator[tuple[Tensor, Parts]]:
    """Yield positions with their parts over a shortlist of the vocabulary.

    Parameters
    ----------
    logits
        Logits of the base and of K adapters, (1 + K, P, C).
    labels
        The next tokens, (P,).
    confidences
        Confidences of the adapters, (P, K).
    width
        Number of tokens of a shortlist; positions with more possible rivals are yielded with the whole vocabulary.

    Yields
    ------
    tuple of Tensor and Parts
        Indices of positions, and their parts. The label is the index in the shortlist, whose tokens are in the order of
        the vocabulary, so that ties are decided as before. Positions where neither the base nor any adapter gives the
        label the highest logit are left out: no mixture predicts it there.
    """
    index = labels.expand(len(logits), -1)[..., None]
    lead = (logits - logits.gather(-1, index)).amax(0)  # (P, C): the best that a token does against the label
    possible = (logits.argmax(-1) == labels).any(0)
    if bool((~possible).any()):  # a mixture can predict the label although no single row does
        possible |= _mixture_may_win(logits, labels)
    size = min(width, lead.shape[-1])
    best = lead.topk(size)
    slack = SLACK * (1 + logits.abs().amax())
    narrow = (best.values[:, -1] < -slack) | (size == lead.shape[-1])
    for chosen, few in ((possible & narrow, True), (possible & ~narrow, False)):
        for rows in chosen.nonzero()[:, 0].split(WIDTH if few else 1):
            if not len(rows):
                continue
            if few:
                tokens = best.indices[rows].sort(-1).values  # the label is among them, since its own lead is 0
                part = logits[:, rows].gather(-1, tokens.expand(len(logits), -1, -1))
                places = (tokens == labels[rows, None]).int().argmax(-1)
            else:
                part, places = logits[:, rows], labels[rows]
            base = part[0]
            residuals = (part[1:] - base).transpose(0, 1)
            zeros = torch.zeros_like(confidences[rows])
            yield rows, Parts(base, residuals, zeros, places, torch.zeros_like(places), confidences[rows])


def _mixture_may_win(logits: Tensor, labels: Tensor) -> Tensor:
    """Return where some mixture could predict the label: no token beats it in every row, (P,)."""
    index = labels.expand(len(logits), -1)[..., None]
    return ((logits - logits.gather(-1, index)).amin(0) <= 0).all(-1)
