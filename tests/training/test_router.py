"""Training of the router: it learns which domain an example comes from."""

from __future__ import annotations

import pytest
import torch

from helpers.models import DOMAINS, draw_features
from redx.config import RouterConfig, TrainingConfig
from redx.training.router import train_router

TRAINING = TrainingConfig(epochs=20, batch=64, virtual_batch=64, lr=1e-2, patience=5)


@pytest.mark.parametrize("shape", ["linear", "mlp"])
def test_a_router_learns_the_domains(shape: str) -> None:
    config = RouterConfig.model_validate({"shape": shape, "hidden": 32, "training": TRAINING.model_dump()})
    train, validation, test = (draw_features(400, seed) for seed in range(3))
    router = train_router(config, DOMAINS, train, validation, seed=0)
    with torch.no_grad():
        right = router(test.inputs).argmax(-1) == test.domains
    assert float(right.double().mean()) > 0.85
    assert torch.allclose(router.mean, train.inputs.mean(0))  # pyright: ignore


def test_the_seed_alone_decides_the_router() -> None:
    config = RouterConfig(hidden=8, dropout=0.2, training=TRAINING.model_copy(update={"epochs": 2}))
    train, validation = draw_features(100), draw_features(50, 1)
    first, again, other = (train_router(config, DOMAINS, train, validation, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])
