"""Thresholds of examples: the largest cut-off on the experts' confidences at which some router can still do harm.

A falling cut-off activates one expert after the other, in the order of their confidences, and the label stays lost once
it is lost. So the threshold is the confidence of the first expert with which some router makes the label lose. Most
examples are far from every tie; for these, bounds on the margins decide, in one pass over the residuals (simplex) or
expert by expert until the label is lost (box). `_exact_thresholds` decides all others, rounding errors and ties included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from redx.composition import certificate
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule
from redx.errors import RedxError

CHUNK = 2**19  # values of N·K·C that are processed at once, so that they stay in the processor's cache
BOX_CHUNK = 2**22  # the same in the box, where only N·C of them are touched at a time
BOX_ROWS = 1024  # examples of a piece in the box, at least
COMPACT = 8  # experts after which decided examples are left out
SAFETY = 4  # factor on the bound of rounding errors


def harm_thresholds(rule: Rule, parts: Parts) -> Tensor:
    """Return the threshold of every example: some router does harm at a cut-off λ exactly if λ is below it.

    Parameters
    ----------
    rule
        A rule that adds residuals to the base, with an adversary on the simplex (`red`) or in the box (`sum`).
    parts
        The record of N examples and K residual experts with their confidences; its cut-offs do not count.

    Returns
    -------
    Tensor
        Thresholds of shape (N,); minus infinity where no router can do harm, as on examples that the base gets wrong.

    Examples
    --------
    >>> from redx.composition.rules import get_rule
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])
    >>> labels, confidences = torch.tensor([0]), torch.tensor([[0.7, 5.0]])
    >>> parts = Parts(base, residuals, torch.zeros(1, 2), labels, labels, confidences)
    >>> harm_thresholds(get_rule("red"), parts)
    tensor([0.7000])
    """
    if not rule.keeps_base or rule.adversary is None:
        raise RedxError(f"The rule {rule.name!r} adds no residuals to the base, so its harm cannot be controlled.")
    if parts.confidences is None:
        raise RedxError("These parts hold no confidences, so no cut-off can be set; give Parts(confidences=…).")
    thresholds = [parts.confidences.new_empty(0)]
    in_box, (_, experts, classes) = rule.adversary == "box", parts.residuals.shape
    for _, chunk in parts.chunks(max(BOX_CHUNK, BOX_ROWS * experts * classes) if in_box else CHUNK):
        right = predicted_classes(chunk.base) == chunk.labels  # never for a label that the base does not know
        values = parts.confidences.new_full((len(chunk),), -math.inf)
        unclear = right
        if classes > 1 and experts:
            unclear = right & (_fill_in_box if in_box else _fill_on_simplex)(chunk, right, values)
        for rows in unclear.nonzero()[:, 0].split(max(1, CHUNK // max(1, experts * classes))):
            values[rows] = _exact_thresholds(rule, chunk.only(rows))
        thresholds.append(values)
    return torch.cat(thresholds)


def _fill_on_simplex(parts: Parts, right: Tensor, values: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    labels = parts.labels.clamp(0, parts.base.shape[1] - 1)  # any class where the base is not right
    scores = parts.base[:, None] + parts.residuals  # (N, K, C)
    index = labels[:, None, None].expand(-1, parts.experts, 1)
    own = scores.gather(-1, index)[..., 0]  # (N, K)
    rival = scores.scatter_(-1, index, -math.inf).amax(-1)
    low, high = parts.residuals.flatten(1).aminmax(dim=1)
    size = torch.maximum(-low, high)  # (N,): the largest residual
    bound = _error_bound(size, parts.base, parts.experts)
    closest = parts.base.scatter(-1, labels[:, None], -math.inf).amax(-1)  # the base's runner-up
    near = parts.base.gather(-1, labels[:, None])[:, 0] - closest <= bound  # then any expert may be the first
    surely = _largest(confidences, own < rival)
    perhaps = torch.where(near, confidences.amax(-1), _largest(confidences, own - rival <= bound[:, None]))
    clear = (surely == perhaps) & bound.isfinite()
    values.copy_(torch.where(right & clear, surely, values))
    return ~clear


def _largest(confidences: Tensor, where: Tensor) -> Tensor:
    """Return the largest confidence of the chosen experts, (N, K) to (N,); minus infinity where none is chosen."""
    return confidences.masked_fill(~where, -math.inf).amax(-1)


def _error_bound(size: Tensor, base: Tensor, experts: int) -> Tensor:
    """Return a bound on the rounding errors of margins for mixtures up to a size, (N, ...); infinite on overflow."""
    precision, steps = torch.finfo(size.dtype), experts + 8
    whole = 2 * (size + base.abs().amax(-1).view(-1, *[1] * (size.ndim - 1)))
    error = SAFETY * (steps * precision.eps * whole + steps * precision.tiny)
    return torch.where(whole < precision.max / SAFETY, error, math.inf)


def _fill_in_box(parts: Parts, right: Tensor, values: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences, (count, experts, classes) = parts.confidences, parts.residuals.shape
    assert confidences is not None
    unclear = torch.zeros(count, dtype=torch.bool)
    rows = right.nonzero()[:, 0]
    labels = parts.labels[rows][:, None]
    order = confidences[rows].argsort(-1, descending=True)  # (n, K)
    low, high = parts.residuals.aminmax(dim=-1)
    sizes = torch.maximum(-low, high)[rows].gather(1, order).cumsum(1)  # (n, K): what the active experts add at most
    bounds = _error_bound(sizes, parts.base[rows], experts)
    worst = parts.base[rows].gather(1, labels) - parts.base[rows]  # (n, C): the smallest margins
    worst.scatter_(1, labels, math.inf)
    table, places = parts.residuals.reshape(-1, classes), rows[:, None] * experts + order
    state = [rows, labels, order, bounds, worst, places]
    decided = torch.zeros(len(rows), dtype=torch.bool)
    for step in range(experts):
        rows, labels, order, bounds, worst, places = state
        residual = table.index_select(0, places[:, step])  # (n, C)
        worst += (residual.gather(1, labels) - residual).clamp_max_(0)
        smallest, bound = worst.amin(1), bounds[:, step]
        fallen = ~decided & ~(smallest > bound)
        if fallen.any():
            lost = smallest[fallen] < -bound[fallen]
            where = rows[fallen]
            values[where[lost]] = confidences[where[lost], order[fallen, step][lost]]
            unclear[where[~lost]] = True
            decided |= fallen
        if step % COMPACT == COMPACT - 1:
            if decided.all():
                break
            state = [tensor[~decided] for tensor in state]
            decided = decided[~decided]
    return unclear


def _exact_thresholds(rule: Rule, parts: Parts) -> Tensor:
    """Return the thresholds of examples that the base answers correctly, ties and rounding errors included: (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    values = confidences.new_full((len(parts),), -math.inf)
    rows = _can_be_lost(rule, parts).nonzero()[:, 0]
    if len(rows):
        values[rows] = _first_lost(rule, parts.only(rows))
    return values


def _can_be_lost(rule: Rule, parts: Parts) -> Tensor:
    """Return where some router makes the label lose while all experts contribute, (N,); elsewhere none ever does."""
    if not parts.experts or not len(parts):
        return torch.zeros(len(parts), dtype=torch.bool)
    in_box = rule.adversary == "box"
    if in_box:
        worst = certificate.worst_in_box(parts.base, parts.residuals, parts.labels)
    else:
        worst = certificate.worst_on_simplex(parts.base[:, None] + parts.residuals, parts.labels)
        worst = worst.minimum(certificate.margins(parts.base, parts.labels))  # inactive experts leave the base
    error = certificate.rounding_error(parts.base, parts.residuals, parts.labels, in_box)
    ties = certificate.loses_ties(parts.base, parts.labels)
    return ((worst < error) | (ties & (worst <= error))).any(-1)


def _first_lost(rule: Rule, parts: Parts) -> Tensor:
    """Return where the label can first be lost as a falling cut-off activates one expert after the other: (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    if not parts.experts:
        return confidences.new_full((len(parts),), -math.inf)
    order = confidences.argsort(-1, descending=True)
    residuals = parts.residuals.gather(1, order[..., None].expand_as(parts.residuals))
    own = certificate.margins(parts.base, parts.labels)[:, None]  # (N, 1, C): the base's, kept by inactive experts
    size = residuals.abs()
    if rule.adversary == "box":
        both_ends = torch.cat([residuals, -residuals], -1)
        change = certificate.margins(residuals, parts.labels) if parts.base.shape[-1] > 1 else both_ends
        worst, scale = own + change.clamp_max(0).cumsum(1), size.cumsum(1)
    else:
        vertices = certificate.margins(parts.base[:, None] + residuals, parts.labels)
        worst, scale = vertices.cummin(1).values.minimum(own), size.cummax(1).values
    error = certificate.margin_error(parts.base, scale, parts.labels, parts.experts)  # (N, K, C)
    ties = certificate.loses_ties(parts.base, parts.labels)[:, None]
    broken = ((worst < error) | (ties & (worst <= error))).any(-1)  # (N, K)
    return confidences.gather(1, order).masked_fill(~broken, -math.inf).amax(-1)
