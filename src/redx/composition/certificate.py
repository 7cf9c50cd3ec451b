"""What no router can break: exact certificates, since every margin is affine in the weights.

Let `m_c` be the margin of the predicted class over rival c. An adversary who may move a fraction ε of the routing mass
turns w into `(1-ε) w + ε v`, so the margin becomes `(1-ε) m_c(w) + ε m_c(v)` and is smallest at the worst v. The
prediction is safe for exactly

    ε* = min over rivals c with worst_c < 0 of  m_c(w) / (m_c(w) - worst_c),        none such: ε* = 1

    worst_c = min_k m_c(e_k)                          v anywhere on the simplex: its minimum sits at a vertex
    worst_c = m_c(base) + Σ_k min(0, m_c(residual_k)) v anywhere in the box [0, 1]^K: any subset of experts missing

For a regression the rivals are the two ends of the interval that rounds to the predicted answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redx.composition.parts import predicted_classes
from redx.errors import RedxError

EPSILONS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)


def margins(scores: Tensor, predicted: Tensor) -> Tensor:
    """By how much the predicted answer leads each rival; scores may carry an expert axis, (N, C) or (N, K, C)."""
    if scores.shape[-1] == 1:
        centre = predicted.to(scores.dtype).view(-1, *[1] * (scores.ndim - 1))
        return torch.cat([scores - (centre - 0.5), (centre + 0.5) - scores], -1)  # distance to either end
    index = predicted.view(-1, *[1] * (scores.ndim - 1)).expand(*scores.shape[:-1], 1)
    lead = scores.gather(-1, index) - scores
    return lead.scatter(-1, index, torch.inf)  # the predicted class is no rival of its own


def worst_on_simplex(vertices: Tensor, predicted: Tensor) -> Tensor:
    """The smallest margin any router can reach, from the scores at the K vertices: (N, K, C) to (N, rivals)."""
    reached = margins(vertices, predicted)
    return reached.amin(1) if reached.shape[1] else torch.full_like(reached.sum(1), torch.inf)


def worst_in_box(base: Tensor, residuals: Tensor, predicted: Tensor) -> Tensor:
    """The smallest margin when any subset of experts may be missing, in full or in part."""
    signs = torch.cat([residuals, -residuals], -1)  # a regression: towards either end
    change = margins(residuals, predicted) if base.shape[-1] > 1 else signs  # (N, K, rivals)
    return margins(base, predicted) + change.clamp_max(0).sum(1)


def radius(margin: Tensor, worst: Tensor) -> Tensor:
    """ε*, the exact share of routing mass an adversary may move without changing the answer: (N, rivals) to (N,)."""
    lead = margin.clamp_min(0)
    broken = lead / torch.where(worst < 0, lead - worst, 1)
    below = 1 - torch.finfo(broken.dtype).eps  # what some router breaks must not round up to safe
    return torch.where(worst < 0, broken.clamp_max(below), 1.0).amin(-1)


def output_interval(scores: Tensor, vertices: Tensor, epsilon: float = 1.0) -> tuple[Tensor, Tensor]:
    """For a regression: the exact lowest and highest output over all routers within ε, each (N,)."""
    check_epsilon(epsilon)
    centre, ends = scores[:, 0], vertices[..., 0]
    low, high = ends.amin(-1), ends.amax(-1)
    return (1 - epsilon) * centre + epsilon * low, (1 - epsilon) * centre + epsilon * high


def worst_weights(scores: Tensor, vertices: Tensor, weights: Tensor, epsilon: float | Tensor) -> Tensor:
    """The most harmful weights within ε: all the mass that may move goes to the vertex that hurts most, (N, K)."""
    predicted = predicted_classes(scores)
    share = torch.as_tensor(epsilon, dtype=weights.dtype).reshape(-1, 1)  # (N or 1, 1)
    moved = (1 - share[..., None]) * scores[:, None] + share[..., None] * vertices  # (N, K, C)
    choice = margins(moved, predicted).amin(-1).argmin(-1)
    return (1 - share) * weights + share * torch.nn.functional.one_hot(choice, weights.shape[1]).to(weights.dtype)


def certified_accuracy(radii: Tensor, right: Tensor, epsilon: float) -> float:
    """Certified accuracy: the share of examples that are right and stay so under any router within ε."""
    check_epsilon(epsilon)
    return float((right & (radii >= epsilon)).double().mean())


def check_epsilon(epsilon: float) -> float:
    """The share itself, if it is one."""
    if not 0 <= epsilon <= 1:
        raise RedxError(f"ε is a share of the routing mass between 0 and 1, not {epsilon}; choose one such as 0.25.")
    return epsilon
