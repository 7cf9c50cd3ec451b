"""Routers: from the mean hidden state of what the base has read so far to the weight of every adapter.

`FixedRouter` has constant weights. `TrainedRouter` is a linear softmax over all adapters, trained together.
`KeysRouter` has one score per adapter, trained apart: own texts against other texts, with a conformal cut-off. An
adapter whose score does not exceed its cut-off gets no weight, and where none does, the base answers alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from redx.errors import RedxError
from redx.io.files import Tensors

STEPS = 400  # of full-batch training
DECAY = 1e-2  # of the weights of a head
SLACK = 1e-4  # by which weights may miss a sum of one


class Router(Protocol):
    """Gives the weights of adapters."""

    def weights(self, states: Tensor, names: Sequence[str]) -> Tensor:
        """Return weights of shape (N, K) for the adapters in `names`, from mean states of shape (N, D)."""
        ...


@dataclass(frozen=True)
class FixedRouter:
    """The same weights everywhere, by the name of the adapter; adapters that are not named get none."""

    by_name: dict[str, float]

    def weights(self, states: Tensor, names: Sequence[str]) -> Tensor:
        return torch.tensor([[self.by_name.get(name, 0.0) for name in names]]).expand(len(states), -1)


@dataclass(frozen=True)
class Head:
    """A linear score on standardised states.

    Attributes
    ----------
    mean, scale
        Mean and standard deviation of the states that it was trained on, (D,).
    weight, bias
        The score, (D,) and a scalar tensor.
    calibration
        Scores of held-out texts of other domains, (n,), which the cut-off of a key is taken from.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    calibration: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """Return the scores of states, (N, D) to (N,)."""
        return ((states - self.mean) / self.scale) @ self.weight + self.bias

    def tensors(self) -> Tensors:
        """Return the tensors by name, to be saved."""
        return dict(vars(self))


@dataclass(frozen=True)
class TrainedRouter:
    """A linear softmax over the heads of adapters; adapters without a head get no weight."""

    heads: dict[str, Head]

    def weights(self, states: Tensor, names: Sequence[str]) -> Tensor:
        return _by_name(self.heads, states, names).softmax(-1).nan_to_num(0.0)


@dataclass(frozen=True)
class KeysRouter:
    """One key per adapter; log-odds of the keys above their cut-offs are weighed against each other and against none.

    Attributes
    ----------
    keys
        The key of every adapter by name.
    alpha
        Probability with which an adapter gets weight on a text of another domain, at most.
    """

    keys: dict[str, Head]
    alpha: float = 0.05

    def weights(self, states: Tensor, names: Sequence[str]) -> Tensor:
        claims = self.claims(states, names)
        cutoffs = [_conformal_cutoff(self.keys[name].calibration, self.alpha) for name in names if name in self.keys]
        active = torch.zeros_like(claims, dtype=torch.bool)
        active[:, [name in self.keys for name in names]] = True
        columns = active.any(0) if len(active) else active.sum(0).bool()
        active[:, columns] = claims[:, columns] > torch.tensor(cutoffs)
        scores = claims.masked_fill(~active, -torch.inf)
        with_none = torch.cat([scores, scores.new_zeros(len(scores), 1)], -1)  # none of the adapters has log-odds 0
        return with_none.softmax(-1)[:, :-1]

    def claims(self, states: Tensor, names: Sequence[str]) -> Tensor:
        """Return the log-odds that the text belongs to each adapter's domain, (N, K)."""
        return _by_name(self.keys, states, names)


def _conformal_cutoff(calibration: Tensor, alpha: float) -> float:
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
    >>> _conformal_cutoff(torch.arange(99.0), alpha=0.1)
    89.0
    """
    if not 0 < alpha <= 1:
        raise RedxError(f"α is a share above 0 and at most 1, not {alpha}; choose one such as 0.001.")
    count = len(calibration)
    rank = math.ceil((count + 1) * (1 - alpha) - 1e-9)  # -1e-9: (n+1)(1-α) is often whole but for rounding
    if rank > count:
        return math.inf
    return float(calibration.sort().values[rank - 1]) if rank else -math.inf


def _by_name(heads: dict[str, Head], states: Tensor, names: Sequence[str]) -> Tensor:
    missing = states.new_full((len(states),), -torch.inf)
    columns = [heads[name](states) if name in heads else missing for name in names]
    return torch.stack(columns, -1) if columns else states.new_empty(len(states), 0)


def train_router(states: Tensor, domains: Tensor, names: Sequence[str]) -> TrainedRouter:
    """Train a linear softmax on mean states.

    Parameters
    ----------
    states
        Mean states of beginnings of training texts, (N, D).
    domains
        Index of the adapter of every row, (N,).
    names
        Names of the K adapters.
    """
    mean, scale = _standard(states)
    weight, bias = _fit((states - mean) / scale, F.one_hot(domains, len(names)).float(), softmax=True)
    empty = torch.empty(0)
    return TrainedRouter(
        {name: Head(mean, scale, weight[:, k].clone(), bias[k].clone(), empty) for k, name in enumerate(names)}
    )


def train_key(own: Tensor, others: Tensor, calibration: Tensor) -> Head:
    """Train the key of one adapter.

    Parameters
    ----------
    own, others
        Mean states of training texts of its own domain and of other texts, (N, D) each.
    calibration
        Mean states of held-out texts of other domains, one per document, (n, D).

    Returns
    -------
    Head
        Its score is the log-odds that a text is of the domain.
    """
    states = torch.cat([own, others])
    mean, scale = _standard(states)
    targets = torch.cat([torch.ones(len(own), 1), torch.zeros(len(others), 1)])
    weight, bias = _fit((states - mean) / scale, targets, softmax=False)
    head = Head(mean, scale, weight[:, 0].clone(), bias[0].clone(), torch.empty(0))
    return Head(mean, scale, head.weight, head.bias, head(calibration))


def _standard(states: Tensor) -> tuple[Tensor, Tensor]:
    return states.mean(0), states.std(0, correction=0).clamp_min(1e-4)


def _fit(inputs: Tensor, targets: Tensor, softmax: bool) -> tuple[Tensor, Tensor]:
    """Return weights (D, K) and biases (K,) of a logistic regression with weight decay."""
    weight = torch.zeros(inputs.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], lr=0.02)
    with torch.enable_grad():
        for _ in range(STEPS):
            logits = inputs @ weight + bias
            plain = F.cross_entropy(logits, targets) if softmax else F.binary_cross_entropy_with_logits(logits, targets)
            loss = plain + DECAY * weight.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return weight.detach(), bias.detach()


def check_weights(weights: Tensor, names: Sequence[str], box: bool = False) -> Tensor:
    """Return fixed weights of shape (K,) unchanged, or refuse weights that no router can give.

    Parameters
    ----------
    weights
        One weight per adapter: on the simplex, or all zero for the base alone; with `box` each in [0, 1].
    names
        Names of the adapters.
    box
        Whether the rule has free weights.
    """
    if weights.shape != (len(names),):
        raise RedxError(f"There are {len(names)} adapters, but {weights.numel()} weights; give one for each.")
    if not bool(weights.isfinite().all()):
        raise RedxError("A weight is NaN or infinite; give numbers between 0 and 1.")
    if bool((weights < 0).any()) or bool((weights > 1 + SLACK).any()):
        raise RedxError(f"A weight lies between 0 and 1, not {float(weights.abs().max()):g}; change it.")
    total = float(weights.sum())
    if not box and total > SLACK and abs(total - 1) > SLACK:
        raise RedxError(f"The weights sum to {total:g}; give weights that sum to 1, or zeros for the base alone.")
    return weights


def running_mean(states: Tensor) -> Tensor:
    """Return the mean of the states up to and including every position, (N, T, D) to (N, T, D)."""
    counts = torch.arange(1, states.shape[1] + 1, dtype=states.dtype)[:, None]
    return states.cumsum(1) / counts
