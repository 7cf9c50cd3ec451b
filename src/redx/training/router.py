"""Train the router: which domain does an example come from?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.config import RouterConfig
from redx.data.dataset import Split
from redx.models.router import NetworkRouter, initialise_router
from redx.seeding import generator
from redx.training.loop import dropout, train


def train_router(
    config: RouterConfig, domains: Sequence[str], split: Split, validation: Split, seed: int, device: str = "cpu"
) -> NetworkRouter:
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
    router = NetworkRouter(split.inputs.shape[1], len(domains), config.shape, config.hidden).to(device)
    initialise_router(router, generator(seed, "router"))
    router.fit(split.inputs)
    draws = [generator(seed, "router dropout")]

    def loss(rows: Tensor) -> Tensor:
        x = dropout(router.standardise(split.inputs[rows[0]])[None], config.dropout, draws)[0]
        return cross_entropy(router.layers(x), split.domains[rows[0]])[None]

    def score(_: int) -> float:
        with torch.no_grad():
            return -float(cross_entropy(router(validation.inputs), validation.domains))

    batches = [generator(seed, "batches", "router")]
    train(router, loss, [len(split)], batches, config.training, f"seed {seed}: router", score)
    return router.cpu()
