"""Ownership scores of adapters are trained apart, and routers give gates to adapters that they do not know."""

from __future__ import annotations

import pytest
import torch

from redx.adapters.routing import Owners, check_weights, restore_score, route, running_mean, train_score
from redx.config import RouterConfig, TrainingConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.router import TrainedRouter
from redx.training.router import train_router

NAMES = ("a", "b", "c")
CONFIG = RouterConfig(shape="linear", training=TrainingConfig(epochs=60, lr=2e-2, patience=10))


def clouds(count: int, seed: int) -> Split:
    draw = torch.Generator().manual_seed(seed)
    domains = torch.arange(count) % 3
    states = 3 * torch.eye(3, 8)[domains] + torch.randn(count, 8, generator=draw)
    return Split(states, torch.zeros_like(domains), domains)


def share_right(gates: torch.Tensor, test: Split) -> float:
    return float((gates.argmax(-1) == test.domains).double().mean())


def test_ownership_scores_route_as_keys() -> None:
    train, held, test = clouds(300, 0), clouds(90, 1), clouds(300, 2)
    scores = {name: train_score(CONFIG, train, held, index, 0) for index, name in enumerate(NAMES)}
    owners = Owners(NAMES, scores)
    assert share_right(owners.ownership_scores(test.inputs), test) > 0.9
    own = owners.ownership_scores(test.inputs)[test.domains == 1]
    assert float((own[:, 1] > 0).double().mean()) > 0.8, "log-odds above 0 for its own texts"
    restored = restore_score(scores["b"].state_dict(), 8)
    assert torch.equal(restored(test.inputs), scores["b"](test.inputs))
    without = Owners((*NAMES, "new"), scores).ownership_scores(test.inputs).softmax(-1)
    assert torch.equal(without[:, 3], torch.zeros(300)), "no weight without a score"


def test_a_trained_router_knows_only_its_adapters() -> None:
    train, held, test = clouds(300, 0), clouds(90, 1), clouds(300, 2)
    router = TrainedRouter(train_router(CONFIG, NAMES, train, held, 0), NAMES)
    gates = route(router, Owners(NAMES, {}), test.inputs)
    assert share_right(gates, test) > 0.9
    fewer = route(router, Owners(("a", "c"), {}), test.inputs)  # an adapter was removed
    assert torch.equal(fewer, gates[:, [0, 2]])
    more = route(router, Owners((*NAMES, "new"), {}), test.inputs).softmax(-1)  # and one was added
    assert torch.equal(more[:, 3], torch.zeros(300))
    assert torch.allclose(more[:, :3], gates.softmax(-1))
    assert torch.equal(route(None, Owners(NAMES, {}), test.inputs), torch.zeros(300, 3))


@pytest.mark.parametrize("box", [False, True])
def test_weights_outside_the_simplex(box: bool) -> None:
    weights = torch.tensor([1.0, 0.5, 0.0])
    if box:
        return torch.testing.assert_close(check_weights(weights, NAMES, box), weights)
    with pytest.raises(RedxError, match=r"sum to 1\.5"):
        check_weights(weights, NAMES, box)


def test_running_mean() -> None:
    states = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(running_mean(states)[:, 3], states[:, :4].mean(1), atol=1e-6)
