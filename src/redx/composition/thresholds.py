"""Thresholds of examples: the largest cut-off on the experts' confidences at which some router can still do harm.

A falling cut-off activates one expert after the other, in the order of their confidences, and the label stays lost once
it is lost. So the threshold is the confidence of the first expert with which some router makes the label lose. Most
examples are far from every tie; for these, bounds on the margins decide, in one pass over the residuals (simplex) or
expert by expert until the label is lost (box). `_exact_thresholds` decides all others, ties and rounding included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from redx.composition import certificate
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule
from redx.errors import RedxError

CHUNK = 2**20  # values of N·K·C that are processed at once: few enough for the cache, enough for few calls
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
    size = max(BOX_CHUNK, BOX_ROWS * experts * classes) if in_box else CHUNK
    scratch = parts.residuals.new_empty(0 if in_box else min(len(parts), _rows(parts)), experts, classes)
    for _, chunk in parts.chunks(size):
        right = predicted_classes(chunk.base) == chunk.labels  # never for a label that the base does not know
        values = parts.confidences.new_full((len(chunk),), -math.inf)
        unclear = right
        if classes > 1 and experts:
            unclear = right & (_fill_in_box if in_box else _fill_on_simplex)(chunk, right, values, scratch)
        for rows in unclear.nonzero()[:, 0].split(_rows(parts)):
            values[rows] = _exact_thresholds(rule, chunk.only(rows))
        thresholds.append(values)
    return torch.cat(thresholds)


def _rows(parts: Parts) -> int:
    """Return the number of examples of a piece, as `Parts.chunks` divides them."""
    return max(1, CHUNK // max(1, parts.residuals[0].numel())) if len(parts) else 1


def _fill_on_simplex(parts: Parts, right: Tensor, values: Tensor, scratch: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences = parts.confidences
    assert confidences is not None
    labels = parts.labels.clamp(0, parts.base.shape[1] - 1)[:, None]  # any class where the base is not right
    scores = torch.add(parts.base[:, None], parts.residuals, out=scratch[: len(parts)])  # (N, K, C)
    index = labels[:, None].expand(-1, parts.experts, 1)
    own = scores.gather(-1, index)[..., 0]  # (N, K)
    rival = scores.scatter_(-1, index, -math.inf).amax(-1)
    fixed, slope = _error_bound(parts, 1)
    bound = fixed + slope
    margin = parts.base.gather(-1, labels) - parts.base.scatter(-1, labels, -math.inf)
    surely = _largest(confidences, own < rival)
    perhaps = _largest(confidences, own - rival <= bound[:, None])
    perhaps = torch.where(margin.amin(-1) <= bound, confidences.amax(-1), perhaps)  # any expert may be the first
    clear = (surely == perhaps) & bound.isfinite()
    values.copy_(torch.where(right & clear, surely, values))
    return ~clear


def _largest(confidences: Tensor, where: Tensor) -> Tensor:
    """Return the largest confidence of the chosen experts, (N, K) to (N,); minus infinity where none is chosen."""
    return confidences.masked_fill(~where, -math.inf).amax(-1)


def _error_bound(parts: Parts, experts: int) -> tuple[Tensor, Tensor]:
    """Return a bound on the rounding errors of margins: `fixed + k * slope` where k experts add up, both (N,).

    It is infinite where the sum over so many `experts` could overflow.
    """
    pieces = parts.residuals.flatten(1).split(_rows(parts))  # both ends are found while a piece is in the cache
    size = torch.cat([torch.maximum(piece.amax(1), -piece.amin(1)) for piece in pieces])
    base = parts.base.abs().amax(-1)
    precision, steps = torch.finfo(size.dtype), parts.experts + 8
    fits = experts * size + base < precision.max / (2 * SAFETY)
    fixed = SAFETY * steps * (2 * precision.eps * base + precision.tiny)
    return torch.where(fits, fixed, math.inf), SAFETY * steps * 2 * precision.eps * size


def _fill_in_box(parts: Parts, right: Tensor, values: Tensor, _: Tensor) -> Tensor:
    """Write the thresholds of examples that are far from ties, (N,), and return which ones are not, (N,)."""
    confidences, (count, experts, classes) = parts.confidences, parts.residuals.shape
    assert confidences is not None
    unclear, rows = torch.zeros(count, dtype=torch.bool), right.nonzero()[:, 0]
    labels, base = parts.labels[rows][:, None], parts.base[rows]
    fixed, slope = (bound[rows] for bound in _error_bound(parts, experts))
    worst = (base.gather(1, labels) - base).scatter_(1, labels, math.inf)  # (n, C): the smallest margins
    order = confidences[rows].argsort(-1, descending=True)
    places = (order + rows[:, None] * experts).T.contiguous()  # (K, n): where experts and their residuals lie
    residuals, sure = parts.residuals.reshape(-1, classes), confidences.reshape(-1)
    decided = torch.zeros(len(rows), dtype=torch.bool)
    for step in range(experts):
        place = places[step % COMPACT]
        residual = residuals.index_select(0, place)  # (n, C)
        worst += residual.gather(1, labels).sub(residual).clamp_max_(0)
        smallest, bound = worst.amin(1), torch.add(fixed, slope, alpha=step + 1)
        fallen = (~(decided | (smallest > bound))).nonzero()[:, 0]
        if len(fallen):
            lost = smallest[fallen] < -bound[fallen]
            values[rows[fallen[lost]]] = sure[place[fallen[lost]]]
            unclear[rows[fallen[~lost]]] = True
            decided[fallen] = True
        if step % COMPACT == COMPACT - 1:  # leave out decided examples, and the experts that were added
            keep = (~decided).nonzero()[:, 0]
            if not len(keep):
                break
            rows, labels, fixed, slope, worst = (tensor[keep] for tensor in (rows, labels, fixed, slope, worst))
            places, decided = places[COMPACT:].index_select(1, keep), decided[keep]
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
