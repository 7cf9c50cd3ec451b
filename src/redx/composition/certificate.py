"""Certificates: the exact share of routing weight that can be moved without changing a prediction.

Let `m_c` be the margin of the predicted class over class c. An adversary that moves a share ε of the routing weight
replaces the weights w by `(1-ε) w + ε v`. Every margin is affine in the weights, so it becomes
`(1-ε) m_c(w) + ε m_c(v)` and is smallest for the worst v. The prediction cannot change as long as ε is below

    ε* = min over classes c with worst_c < 0 of  m_c(w) / (m_c(w) - worst_c),    or ε* = 1 if there is no such class

    worst_c = min_k m_c(e_k)                            v on the simplex: the minimum is at a vertex e_k
    worst_c = m_c(base) + Σ_k min(0, m_c(residual_k))   v in the box [0, 1]^K: any subset of the experts is missing

A regression has two margins instead: the distances to both ends of the interval that rounds to the predicted answer.

Ties. `argmax` takes the lowest index, so a margin of 0 over a class of a lower index changes the prediction, and over
one of a higher index it does not. Rounding goes to even, so both ends of the interval belong to an even answer and
neither to an odd one.

Rounding. Scores are computed in floating point. A margin below the rounding error of the mixture counts as 0, so a
radius is never too large for the scores as they are computed. It is too small by a few units in the last place, except
where the answer is tied with another class at the actual weights: there it is 0, although in exact arithmetic the tie
may last. Even two equal columns do not always have equal sums in a matrix product, so no tie can be relied on
(`benchmarks/ties.py`).

No weights. A rule that leaves the base out lets it answer where all weights are zero. As soon as any weight is moved,
the experts alone answer: the scores start from zero, not from those of the base.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redx.composition.parts import predicted_classes
from redx.errors import RedxError

EPSILONS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)


def margins(scores: Tensor, predicted: Tensor) -> Tensor:
    """Return the margins of the predicted answers.

    Parameters
    ----------
    scores
        Scores of shape (N, C), or (N, K, C) with an axis of experts.
    predicted
        Predicted classes of shape (N,); for a regression the predicted answers.

    Returns
    -------
    Tensor
        Margins of the shape of `scores`; the predicted class has margin infinity over itself. For a regression
        (C = 1) the last axis has two entries, the distances to both ends of the rounding interval.

    Examples
    --------
    >>> margins(torch.tensor([[2.0, 0.5, 1.0]]), torch.tensor([0]))
    tensor([[   inf, 1.5000, 1.0000]])
    """
    if scores.shape[-1] == 1:
        centre = predicted.to(scores.dtype).view(-1, *[1] * (scores.ndim - 1))
        return torch.cat([scores - (centre - 0.5), (centre + 0.5) - scores], -1)
    index = predicted.view(-1, *[1] * (scores.ndim - 1)).expand(*scores.shape[:-1], 1)
    lead = scores.gather(-1, index) - scores
    return lead.scatter(-1, index, torch.inf)


def worst_on_simplex(vertices: Tensor, predicted: Tensor) -> Tensor:
    """Return the smallest margins over all weights on the simplex.

    Parameters
    ----------
    vertices
        Scores with the whole weight on one expert, (N, K, C); see `redx.composition.rules.vertex_scores`.
    predicted
        Predicted classes of shape (N,).

    Returns
    -------
    Tensor
        Margins of shape (N, C), or (N, 2) for a regression; infinity if there are no experts.

    Examples
    --------
    >>> worst_on_simplex(torch.tensor([[[2.0, 0.0], [1.0, 3.0]]]), torch.tensor([0]))
    tensor([[inf, -2.]])
    """
    lead = margins(vertices, predicted)  # (N, K, C)
    return lead.amin(1) if lead.shape[1] else torch.full_like(lead.sum(1), torch.inf)


def worst_in_box(base: Tensor, residuals: Tensor, predicted: Tensor) -> Tensor:
    """Return the smallest margins over all weights in the box [0, 1]^K, so that any experts may be missing.

    Parameters
    ----------
    base
        Logits of the base, (N, C).
    residuals
        Residuals of the experts, (N, K, C).
    predicted
        Predicted classes of shape (N,).

    Returns
    -------
    Tensor
        Margins of shape (N, C), or (N, 2) for a regression.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 3.0]]])
    >>> worst_in_box(base, residuals, torch.tensor([0]))
    tensor([[inf, -2.]])
    """
    both_ends = torch.cat([residuals, -residuals], -1)  # for a regression: the change of both distances
    change = margins(residuals, predicted) if base.shape[-1] > 1 else both_ends  # (N, K, C or 2)
    return margins(base, predicted) + change.clamp_max(0).sum(1)


def loses_ties(scores: Tensor, predicted: Tensor) -> Tensor:
    """Return which rivals win a tie with the predicted answer.

    Parameters
    ----------
    scores
        Scores of shape (N, C).
    predicted
        Predicted classes of shape (N,); for a regression the predicted answers.

    Returns
    -------
    Tensor
        Booleans of shape (N, C), or (N, 2) for a regression: classes of a lower index; both ends of an odd answer.

    Examples
    --------
    >>> loses_ties(torch.zeros(1, 3), torch.tensor([1]))
    tensor([[ True, False, False]])
    """
    if scores.shape[-1] == 1:
        return (predicted % 2 == 1)[:, None].expand(-1, 2)
    return torch.arange(scores.shape[-1], device=scores.device) < predicted[:, None]


def rounding_error(base: Tensor | None, residuals: Tensor, predicted: Tensor, box: bool = False) -> Tensor:
    """Return a bound on the rounding error of the margins of any mixture.

    Parameters
    ----------
    base
        What the mixture is added to, (N, C), or None.
    residuals
        What is mixed, (N, K, C).
    predicted
        Predicted classes of shape (N,); for a regression the predicted answers.
    box
        Whether weights are free in the box [0, 1]^K; otherwise they lie on the simplex.

    Returns
    -------
    Tensor
        Bounds of shape (N, C), or (N, 2) for a regression; 0 where nothing is mixed but zeros.

    Examples
    --------
    >>> rounding_error(torch.ones(1, 2), torch.zeros(1, 3, 2), torch.tensor([0]))
    tensor([[0., 0.]])
    """
    size = residuals.abs()
    scale = size.sum(1) if box else size.amax(1) if size.shape[1] else size.sum(1)  # (N, C)
    return margin_error(base, scale, predicted, residuals.shape[1])


def margin_error(base: Tensor | None, scale: Tensor, predicted: Tensor, experts: int) -> Tensor:
    """Return a bound on the rounding error of margins, from the size of what is mixed.

    Parameters
    ----------
    base
        What the mixture is added to, (N, C), or None.
    scale
        Largest absolute value, per class, that the mixture can reach: (N, C), or (N, K, C) for several mixtures.
    predicted
        Predicted classes of shape (N,); for a regression the predicted answers.
    experts
        Number of terms of the mixture.

    Returns
    -------
    Tensor
        Bounds of the shape of `scale`, with two entries on the last axis for a regression.

    Examples
    --------
    >>> margin_error(None, torch.zeros(1, 2), torch.tensor([0]), experts=3)
    tensor([[0., 0.]])
    """
    rows = predicted.view(-1, *[1] * (scale.ndim - 1))
    offset = torch.zeros_like(scale) if base is None else base.abs().view(len(base), *[1] * (scale.ndim - 2), -1)
    if scale.shape[-1] == 1:
        mixed, size = scale.expand(*scale.shape[:-1], 2), scale + offset + rows.abs()
    else:
        own = rows.expand(*scale.shape[:-1], 1)
        mixed = scale + scale.gather(-1, own)
        size = mixed + offset + offset.expand_as(scale).gather(-1, own)
    precision, steps = torch.finfo(scale.dtype), experts + 8
    error = steps * precision.eps * size + steps * precision.tiny  # products may lose numbers below `tiny` altogether
    return torch.where(mixed == 0, 0.0, error).clamp_max(precision.max)


def radius(margin: Tensor, worst: Tensor, loses_ties: Tensor | None = None, error: Tensor | None = None) -> Tensor:
    """Return ε*, the share of routing weight that an adversary may move without changing the prediction.

    Parameters
    ----------
    margin
        Margins at the actual weights, (N, C); for a regression (N, 2).
    worst
        Smallest margins that an adversary can reach, of the same shape.
    loses_ties
        Where a margin of 0 changes the prediction, of the same shape; nowhere by default.
    error
        Bound on the rounding error of margins, of the same shape; 0 by default.

    Returns
    -------
    Tensor
        Radii in [0, 1] of shape (N,). A prediction is safe for every ε up to its radius, the radius included. A radius
        of 1 means that no router can change the prediction.

    Examples
    --------
    >>> radius(torch.tensor([[torch.inf, 1.0]]), torch.tensor([[torch.inf, -3.0]]))
    tensor([0.2500])
    """
    error = torch.zeros_like(margin) if error is None else error
    breakable = worst < error
    if loses_ties is not None:
        breakable = breakable | (loses_ties & (worst <= error))
    lead = (margin - error).clamp_min(0)
    span = torch.where(breakable, margin - worst, 1)
    limit = torch.where(span > 0, lead / torch.where(span > 0, span, 1), 0)
    limit = torch.where(span.isinf(), 0, limit)  # overflow: nothing can be promised
    below_one = 1 - torch.finfo(limit.dtype).eps  # a prediction that some router changes must not round up to 1
    return torch.where(breakable, limit.clamp(0, below_one), 1.0).amin(-1)


def output_interval(scores: Tensor, vertices: Tensor, epsilon: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest output of a regression over all routers within ε.

    Parameters
    ----------
    scores
        Outputs at the actual weights, (N, 1).
    vertices
        Outputs with the whole weight on one expert, (N, K, 1).
    epsilon
        Share of the routing weight that an adversary may move, from 0 to 1.

    Returns
    -------
    tuple of Tensor
        The exact lower and upper ends, both of shape (N,).

    Examples
    --------
    >>> output_interval(torch.tensor([[4.0]]), torch.tensor([[[2.0], [8.0]]]), 0.5)
    (tensor([3.]), tensor([6.]))
    """
    check_epsilon(epsilon)
    centre, outputs = scores[:, 0], vertices[..., 0]
    low, high = outputs.amin(-1), outputs.amax(-1)
    return (1 - epsilon) * centre + epsilon * low, (1 - epsilon) * centre + epsilon * high


def worst_weights(scores: Tensor, vertices: Tensor, weights: Tensor, epsilon: float | Tensor) -> Tensor:
    """Return the weights within ε that make the smallest margin as small as possible.

    Parameters
    ----------
    scores
        Scores at the actual weights, (N, C).
    vertices
        Scores with the whole weight on one expert, (N, K, C).
    weights
        The actual weights, (N, K).
    epsilon
        Share of the routing weight that may be moved: one number, or one per example, (N,).

    Returns
    -------
    Tensor
        Weights of shape (N, K). The share ε of the weight is on the expert that lowers the margin most.

    Examples
    --------
    >>> scores, vertices = torch.tensor([[2.0, 0.0]]), torch.tensor([[[2.0, 0.0], [1.0, 3.0]]])
    >>> worst_weights(scores, vertices, torch.tensor([[1.0, 0.0]]), 0.25)
    tensor([[0.7500, 0.2500]])
    """
    predicted = predicted_classes(scores)
    share = torch.as_tensor(epsilon, dtype=weights.dtype).reshape(-1, 1)  # (N or 1, 1)
    moved = (1 - share[..., None]) * scores[:, None] + share[..., None] * vertices  # (N, K, C)
    choice = margins(moved, predicted).amin(-1).argmin(-1)
    return (1 - share) * weights + share * torch.nn.functional.one_hot(choice, weights.shape[1]).to(weights.dtype)


def certified_accuracy(radii: Tensor, right: Tensor, epsilon: float) -> float:
    """Return the share of examples that are predicted correctly by every router within ε.

    Parameters
    ----------
    radii
        Certified radii of the predictions, (N,).
    right
        Whether the predictions are correct, a boolean tensor of shape (N,).
    epsilon
        Share of the routing weight that an adversary may move, from 0 to 1.

    Returns
    -------
    float
        The share of examples that are correct and whose radius is at least ε.

    Examples
    --------
    >>> certified_accuracy(torch.tensor([1.0, 0.2]), torch.tensor([True, True]), 0.5)
    0.5
    """
    check_epsilon(epsilon)
    return float((right & (radii >= epsilon)).double().mean())


def check_epsilon(epsilon: float) -> float:
    """Return ε unchanged, or raise `RedxError` if it is outside [0, 1].

    Parameters
    ----------
    epsilon
        The share to check.

    Returns
    -------
    float
        The same share.

    Examples
    --------
    >>> check_epsilon(0.25)
    0.25
    """
    if not 0 <= epsilon <= 1:
        raise RedxError(f"ε is a share of the routing weight between 0 and 1, not {epsilon}; choose one such as 0.25.")
    return epsilon
