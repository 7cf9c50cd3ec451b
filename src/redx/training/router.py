"""Train the router: which domain does an example come from?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from redx.config import RouterConfig
from redx.data.dataset import Split
from redx.models.router import NetworkRouter, build_router, initialise_router
from redx.seeding import generator
from redx.training.loop import dropout, train


def train_router(
    config: RouterConfig, domains: Sequence[str], split: Split, validation: Split, seed: int, device: str = "cpu"
) -> nn.Module:
    """Train a router on the features of all domains.

    Parameters
    ----------
    config
        Architecture and training settings.
    domains
        The experts that it gets a gate for, in the order that `split.domains` counts.
    split, validation
        Features with their domains.
    seed
        Decides initial weights and batches.
    device
        Where to train; the router that is returned is on the CPU.
    """
    split, validation = split.to(device), validation.to(device)
    router: Any = build_router(split.inputs.shape[1], len(domains), config).to(device)
    if hasattr(router, "solve"):
        router.solve(split.inputs, split.domains)
        return router.cpu()
    initialise_router(router, generator(seed, "router"))
    if hasattr(router, "fit"):
        router.fit(split.inputs)
    is_network = isinstance(router, NetworkRouter)
    prepare, layers = (router.standardise, router.layers) if is_network else (_unchanged, router)
    draws = [generator(seed, "router dropout")]

    def loss(rows: Tensor) -> Tensor:
        x = dropout(prepare(split.inputs[rows[0]])[None], config.dropout, draws)[0]
        return cross_entropy(layers(x), split.domains[rows[0]])[None]

    def score(_: int) -> float:
        with torch.no_grad():
            return -float(cross_entropy(router(validation.inputs), validation.domains))

    batches = [generator(seed, "batches", "router")]
    train(router, loss, [len(split)], batches, config.training, f"seed {seed}: router", score)
    return router.cpu()


def _unchanged(h: Tensor) -> Tensor:
    return h
