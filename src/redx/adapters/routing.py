"""Routing of adapters: mean hidden states of what the base has read so far, and the adapters' ownership scores.

The routers are those of `redx.models.router`: a trained one over all adapters, and `keys`, every adapter's own score.
An ownership score is a router of two gates, own texts against other texts; the difference of its gates is the log-odds
that a text is of the adapter's domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from redx.config import RouterConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.library import CLOSED_GATE
from redx.models.router import KEYS, TRAINED, TrainedRouter, build_router
from redx.training.router import train_router

OWN = ("own", "other")  # the two gates of an ownership score
SLACK = 1e-4  # by which weights may miss a sum of one


@dataclass(frozen=True)
class Owners:
    """Adapters by name with their ownership scores: what a router asks.

    Attributes
    ----------
    names
        Names of the K adapters.
    scores
        The ownership scores of those adapters that have one.
    """

    names: tuple[str, ...]
    scores: dict[str, nn.Module]

    def ownership_scores(self, h: Tensor) -> Tensor:
        """Return the log-odds that a text is of each adapter's domain, (N, D) to (N, K); closed without a score."""
        closed = h.new_full((len(h),), CLOSED_GATE)
        columns = [_log_odds(self.scores[name], h) if name in self.scores else closed for name in self.names]
        return torch.stack(columns, -1) if columns else h.new_zeros(len(h), 0)


def _log_odds(score: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        gates = score(h)  # (N, 2)
    return gates[:, 0] - gates[:, 1]


def route(router: TrainedRouter | None, owners: Owners, h: Tensor) -> Tensor:
    """Return the gates of a trained router, (N, D) to (N, K), closed for adapters that it does not know."""
    known = [] if router is None else [name for name in owners.names if name in router.experts]
    if router is None or not known:
        return owners.ownership_scores(h) if owners.scores else h.new_zeros(len(h), len(owners.names))
    gates = h.new_full((len(h), len(owners.names)), CLOSED_GATE)
    gates[:, [owners.names.index(name) for name in known]] = router.gates(h, Owners(tuple(known), {}))
    return gates


def choose_routing(wanted: str | None, router: TrainedRouter | None, owners: Owners) -> str:
    """Return the way to route: `router`, `keys` or `uniform`; by default the best that there is."""
    if wanted is None:
        return TRAINED if router is not None else KEYS if owners.scores else "uniform"
    if wanted not in (TRAINED, KEYS, "uniform"):
        raise RedxError(f"There is no router {wanted!r}; choose one of {TRAINED}, {KEYS}, uniform.")
    if wanted == TRAINED and router is None:
        raise RedxError(f"There is no trained router; choose {KEYS} or uniform, or give weights.")
    if wanted == KEYS and not owners.scores:
        raise RedxError(f"These adapters have no ownership scores; choose {TRAINED} or uniform, or give weights.")
    return wanted


def train_score(config: RouterConfig, states: Split, validation: Split, index: int, seed: int) -> nn.Module:
    """Train the ownership score of one adapter: texts of its own domain against all others.

    Parameters
    ----------
    config
        Settings of the router; a score is always linear.
    states, validation
        Mean states of texts, with their domains.
    index
        The adapter's domain.
    seed
        Decides initial weights and batches.
    """
    linear = config.model_copy(update={"shape": "linear"})
    mine, held = (Split(one.inputs, one.labels, (one.domains != index).long()) for one in (states, validation))
    return train_router(linear, OWN, mine, held, seed)


def restore_score(tensors: dict[str, Tensor], width: int) -> nn.Module:
    """Return the ownership score with these tensors, or raise `ValueError` or `RuntimeError` where they are none."""
    score = build_router(width, len(OWN), RouterConfig(shape="linear"))
    score.load_state_dict(tensors)
    return score.eval()


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
