"""The adversary of the page: the worst router within ε, the classes that it can reach, and why it may fail."""

from __future__ import annotations

import torch
from torch import Tensor

from redx.composition import certificate
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule, compose, vertex_scores

ALL_CLASSES = 200  # up to so many classes are sent to the page; of more, only those that some router can reach


def worst_router(rule: Rule, parts: Parts, weights: Tensor, epsilon: float) -> Tensor:
    """Return the weights that an adversary with a share ε of the routing weight chooses, (N, K).

    Parameters
    ----------
    rule
        A rule with an adversary.
    parts
        The record of N examples, with the residuals that contribute.
    weights
        The actual weights, (N, K).
    epsilon
        The share that is moved, from 0 to 1.
    """
    scores = compose(rule, parts, weights)
    if rule.adversary == "simplex":
        return certificate.worst_weights(scores, vertex_scores(rule, parts), weights, epsilon)
    predicted = predicted_classes(scores)
    if parts.base.shape[-1] > 1:
        change = certificate.margins(parts.residuals, predicted)  # (N, K, C)
    else:
        change = torch.cat([parts.residuals, -parts.residuals], -1)  # (N, K, 2)
    worst = certificate.worst_in_box(parts.base, parts.residuals, predicted)  # (N, C or 2)
    moved = (1 - epsilon) * certificate.margins(scores, predicted) + epsilon * worst
    rival = moved.argmin(-1)[:, None, None].expand(-1, parts.experts, 1)
    target = (change.gather(-1, rival)[..., 0] < 0).to(weights.dtype)  # (N, K): the experts that help the rival
    return (1 - epsilon) * weights + epsilon * target


def reachable_classes(rule: Rule, parts: Parts, predicted: int) -> list[int]:
    """Return the classes that some router can make the answer of one example, and those that are always shown.

    Parameters
    ----------
    rule, parts
        The rule, and the record of one example with the residuals that contribute.
    predicted
        The predicted class.

    Returns
    -------
    list of int
        All classes where they are few. Otherwise the predicted class, the base's answer, and every class whose margin
        some weights bring to 0; no other class can be the answer.
    """
    count = parts.base.shape[-1]
    if count <= ALL_CLASSES:
        return list(range(count))
    answer = torch.tensor([predicted])
    if rule.adversary == "box":
        worst = certificate.worst_in_box(parts.base, parts.residuals, answer)
    else:
        worst = certificate.worst_on_simplex(vertex_scores(rule, parts), answer)
    error = certificate.rounding_error(None, rule.read(parts.residuals), answer, rule.adversary == "box")
    reached = (worst[0] <= error[0]).nonzero()[:, 0].tolist()
    return sorted({*reached, predicted, int(parts.base[0].argmax())})


def why_safe(rule: Rule, parts: Parts, predicted: int, names: tuple[str, ...], label: str) -> str:
    """Return why no router can change the answer of one example whose radius is 1."""
    if rule.adversary is None:
        return f"The rule {rule.name} has no routing weights, so there is nothing to move."
    if not bool(parts.residuals.any()):
        return "No expert is confident enough to contribute here, so the base answers whatever the router does."
    if rule.adversary == "box":
        return f"Even if any experts are missing, {label} keeps the highest score."
    margins = certificate.margins(vertex_scores(rule, parts), torch.tensor([predicted]))[0]  # (K, C or 2)
    least = margins.amin(-1)
    expert = int(least.argmin())
    return (
        f"Even with the whole weight on {names[expert]}, the expert that helps a rival most, {label} stays ahead by "
        f"{float(least[expert]):.3g}; every other router is a mixture of such cases."
    )
