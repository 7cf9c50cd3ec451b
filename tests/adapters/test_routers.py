"""Routers: weights on the simplex, adapters without a head, and keys that abstain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from redx.adapters.routers import FixedRouter, KeysRouter, TrainedRouter, running_mean, train_key, train_router

NAMES = ["a", "b", "c"]


def clouds(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    domains = torch.arange(count) % 3
    return 3 * torch.eye(3, 8)[domains] + torch.randn(count, 8, generator=draw), domains


def test_trained_router_finds_the_domain() -> None:
    router = train_router(*clouds(300, 0), NAMES)
    states, domains = clouds(300, 1)
    weights = router.weights(states, NAMES)
    assert torch.allclose(weights.sum(-1), torch.ones(300))
    assert float((weights.argmax(-1) == domains).double().mean()) > 0.9
    fewer = router.weights(states, ["a", "c"])  # an adapter was removed
    assert torch.allclose(fewer.sum(-1), torch.ones(300))
    more = router.weights(states, [*NAMES, "new"])  # an adapter was added that the router does not know
    assert torch.equal(more[:, 3], torch.zeros(300))
    assert torch.allclose(more[:, :3], weights)
    assert torch.equal(TrainedRouter({}).weights(states, NAMES), torch.zeros(300, 3))


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_keys_are_rarely_active_on_other_texts(alpha: float) -> None:
    states, domains = clouds(300, 0)
    held, held_domains = clouds(6000, 1)
    keys = {
        name: train_key(states[domains == k], states[domains != k], held[held_domains != k])
        for k, name in enumerate(NAMES)
    }
    router = KeysRouter(keys, alpha)
    test, test_domains = clouds(3000, 2)
    weights = router.weights(test, NAMES)
    for k in range(3):
        others = weights[test_domains != k, k] > 0
        own = weights[test_domains == k, k] > 0
        assert float(others.double().mean()) <= alpha + 0.03
        assert float(own.double().mean()) > 0.8
    assert float(weights.sum(-1).max()) <= 1 + 1e-6
    far = torch.full((1, 8), -50.0)
    assert router.weights(far, NAMES).sum() <= 1
    assert router.weights(test[:2], ["new"]).sum() == 0


def test_fixed_router() -> None:
    weights = FixedRouter({"b": 0.25}).weights(torch.zeros(2, 4), NAMES)
    assert weights.tolist() == [[0.0, 0.25, 0.0]] * 2


def test_running_mean() -> None:
    states = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(running_mean(states)[:, 3], states[:, :4].mean(1), atol=1e-6)
