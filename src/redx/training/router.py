"""What each stage computes: from settings, data and a seed to tensors; no run folder, no order of things."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.config import RunConfig
from redx.data.dataset import Split
from redx.models.router import NetworkRouter, initialise_router
from redx.seeding import generator
from redx.training.loop import dropout, train


def train_router(config: RunConfig, domains: Sequence[str], split: Split, check: Split, seed: int) -> dict[str, Tensor]:
    """Learn which domain an example comes from."""
    settings = config.router
    router = NetworkRouter(split.inputs.shape[1], len(domains), settings.shape, settings.hidden)
    initialise_router(router, generator(seed, "router"))
    router.standardise(split.inputs)

    draws = [generator(seed, "router dropout")]

    def loss(rows: Tensor) -> Tensor:
        x = dropout(router.bus(split.inputs[rows[0]])[None], settings.dropout, draws)[0]
        return cross_entropy(router.layers(x), split.domains[rows[0]])[None]

    def score(_: int) -> float:
        with torch.no_grad():
            return -float(cross_entropy(router(check.inputs), check.domains))

    batches = [generator(seed, "batches", "router")]
    train(settings.training, router, loss, [len(split)], batches, score, f"seed {seed}: router")
    return router.state_dict()
