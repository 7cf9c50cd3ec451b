"""Every stage that trains or runs networks moves to the device and back: the same code path with a device of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import redx
from helpers.fake_device import FakeDevice, is_moved
from helpers.models import DOMAINS, draw_expert_datasets, draw_features, identity_base
from redx.config import BankConfig, BankId, BaseConfig, OwnershipConfig, RouterConfig, TrainingConfig
from redx.models.backbones.image import ConvEncoder
from redx.models.banks import split_bank
from redx.models.encoder import FeatureEncoder
from redx.models.trunks import MLPTrunk
from redx.training.banks import train_bank, train_jointly, train_ownership
from redx.training.base import fit_base
from redx.training.features import embed_split
from redx.training.router import train_router

SHORT = TrainingConfig(epochs=2, batch=16, virtual_batch=32, patience=1, clip=1.0)
MLP = BankConfig(shape="mlp", hidden=8, depth=1, dropout=0.2, anchor="margin", standardise=True, training=SHORT)


def train_experts_on(device: str, **changes: Any) -> list[dict[str, Tensor]]:
    config = MLP.model_copy(update=changes)
    datasets = draw_expert_datasets(draw_features(200))
    return split_bank(train_bank(BankId("residual", "x"), config, datasets, identity_base(), 0, 1.0, device))


def train_ownership_on(device: str, score: str) -> list[dict[str, Tensor]]:
    config = OwnershipConfig.model_validate({"kind": score, "bank": MLP.model_dump() | {"standardise": False}})
    return train_ownership(config, draw_expert_datasets(draw_features(200)), identity_base(), 0, device)


def train_router_on(device: str) -> list[dict[str, Tensor]]:
    config = RouterConfig(hidden=8, dropout=0.1, training=SHORT)
    return [train_router(config, DOMAINS, draw_features(200), draw_features(50, 1), 0, device).state_dict()]


def train_jointly_on(device: str) -> list[dict[str, Tensor]]:
    data, base = draw_features(200), identity_base()
    bank = train_bank(BankId("residual", "x"), MLP, draw_expert_datasets(data), base, 0, 1.0)
    router = train_router(RouterConfig(hidden=8, training=SHORT), DOMAINS, data, data, 0)
    trained = train_jointly(SHORT, bank, router, base, data, 0, device)
    return [network.state_dict() for network in trained]


def train_base_on(device: str) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    encoder = FeatureEncoder(MLPTrunk(16, 8, 1, append_features=True))
    config = BaseConfig(training=SHORT)
    return [fit_base(encoder, config, draw_features(200), draw_features(50, 1), 10, 0, device).tensors()]


def train_image_base_on(device: str) -> list[dict[str, Tensor]]:
    torch.manual_seed(0)
    split = draw_features(40)
    images = (255 * torch.rand(40, 28, 28, generator=torch.Generator().manual_seed(1))).to(torch.uint8)
    split = type(split)(images, split.labels, split.domains)
    config = BaseConfig(augment=True, smoothing=0.1, training=SHORT.model_copy(update={"epochs": 1}))
    return [fit_base(ConvEncoder(), config, split, split, 10, 0, device).tensors()]


STAGES: dict[str, Callable[[str], list[dict[str, Tensor]]]] = {
    "experts": train_experts_on,
    "low-rank experts": lambda device: train_experts_on(device, shape="lowrank", standardise=False),
    "ownership by classes": lambda device: train_ownership_on(device, "classes"),
    "ownership by domain": lambda device: train_ownership_on(device, "binary"),
    "router": train_router_on,
    "integration": train_jointly_on,
    "base": train_base_on,
    "image base": train_image_base_on,
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_trains_on_the_device_and_gives_back_the_same_weights_on_the_cpu(stage: str) -> None:
    expected = STAGES[stage]("cpu")
    with FakeDevice() as device:
        trained = STAGES[stage]("cuda")
    assert device.moved > 0
    for one, other in zip(expected, trained, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert not is_moved(other[name]), name
            assert torch.equal(value, other[name]), name


def test_the_fake_device_refuses_to_mix_devices() -> None:
    with FakeDevice():
        there = torch.ones(3, device="cuda")
        assert there.device.type == "cuda"
        assert is_moved(there * 2)
        assert not is_moved((there * 2).cpu())
        with pytest.raises(AssertionError, match="two devices"):
            torch.add(there, torch.ones(3))
        with pytest.raises(AssertionError, match="two devices"):
            torch.stack([there, torch.ones(3)])
        with pytest.raises(AssertionError, match="cannot be indexed"):
            torch.ones(3)[torch.zeros(1, dtype=torch.long).to("cuda")]


def test_encoding_and_parts_run_on_the_device(
    clouds: redx.Run, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    model = redx.load(clouds.folder)
    assert model.anchor_data is not None
    split = model.anchor_data()
    expected = {bank_id: model.parts_of(split.inputs, bank_id, split.labels, split.domains) for bank_id in model.banks}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    raw = draw_features(30)
    raw = type(raw)(torch.randn(30, *model.info.shape), raw.labels, raw.domains)
    features = model.base.embed(raw.inputs)
    with FakeDevice() as device:
        config = model.config.model_copy(update={"device": "cuda"})
        assert torch.equal(embed_split(config, model.base, raw).inputs, features)
        encoded = device.moved
        model.place("cuda")
        for bank_id, parts in expected.items():
            again = model.parts_of(split.inputs, bank_id, split.labels, split.domains)
            assert not is_moved(again.residuals)
            assert torch.equal(again.residuals, parts.residuals)
            assert torch.equal(again.gates, parts.gates)
    assert encoded > 0
    assert device.moved > encoded
