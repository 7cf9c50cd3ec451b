"""Merges of adapters that peft computes, the baselines of composition; their weights are chosen on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window
from redx.io.progress import progress


@torch.inference_mode()
def choose_merges(
    composed: ComposedLM, windows: Sequence[Window], methods: Sequence[str], scales: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """Return the best weight of every method, the same for every adapter, by the loss on validation windows.

    Parameters
    ----------
    composed
        The model with all adapters; merges are added and removed again.
    windows
        Validation windows.
    methods
        Methods of peft's `add_weighted_adapter`. One that needs equal ranks is left out where ranks differ.
        There are none of adapters that peft cannot merge.
    scales
        Weights to try.

    Returns
    -------
    dict
        By method: the chosen `scale`, the mean over domains of the `loss` of a token, and all losses as `tried`.
    """
    chosen: dict[str, dict[str, Any]] = {}
    experts = list(composed.names)
    methods = methods if composed.stack.can_merge else ()
    with progress("choosing merges", len(methods) * len(scales)) as advance:
        for method in methods:
            tried = {}
            for scale in scales:
                try:
                    composed.stack.merge(method, method, [scale] * len(experts), experts)
                except ValueError:  # of peft: this method needs adapters of equal rank
                    break
                tried[scale] = _mean_loss(composed, method, windows)
                composed.remove(method)
                advance(1)
            if tried:
                best = min(tried, key=lambda scale: tried[scale])
                losses = {f"{scale:g}": loss for scale, loss in tried.items()}
                chosen[method] = {"scale": best, "loss": tried[best], "tried": losses}
    return chosen


def _mean_loss(composed: ComposedLM, name: str, windows: Sequence[Window]) -> float:
    sums: dict[int, list[float]] = {}
    for window in windows:
        logits = composed.stack.forward([name], window.tokens[None, :-1], use_cache=False).logits[0]
        loss = F.cross_entropy(logits.float(), window.tokens[1:], reduction="sum")
        total = sums.setdefault(window.domain, [0.0, 0.0])
        total[0] += float(loss)
        total[1] += len(window.tokens) - 1
    return sum(loss / tokens for loss, tokens in sums.values()) / len(sums)
