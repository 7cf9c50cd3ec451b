"""A small model in memory whose base knows ten classes, and experts that bring classes of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from helpers.models import CLASSES, DOMAINS, FEATURES, draw_features, identity_base
from redx.config import BankConfig, BankId, OwnershipConfig, RouterConfig, RunConfig, TrainingConfig
from redx.data.dataset import Split
from redx.model.model import Model, ModelInfo
from redx.models.classes import extend_base
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.seeding import generator
from redx.training.datasets import expert_data, expert_datasets
from redx.training.experts import train_experts

NAMES = tuple(f"c{number}" for number in range(CLASSES))
ANCHORED, RISK, HEADS = BankId("residual", "anchored"), BankId("residual", "risk"), BankId("standalone", "anchored")


@functools.cache
def small_config(shape: str = "mlp") -> RunConfig:
    """Return settings with few epochs: anchored residual experts under risk control, and standalone heads."""
    training = TrainingConfig(epochs=60, batch=32, virtual_batch=32, lr=2e-2)
    network = {"shape": shape, "hidden": 16, "depth": 1, "anchor": "truth", "training": training}
    residual = BankConfig.model_validate(network)
    head = BankConfig.model_validate(network | {"shape": "mlp"})
    banks = {
        ANCHORED: residual,
        RISK: residual.model_copy(update={"experts_of": ANCHORED, "controlled": True}),
        HEADS: head,
    }
    return RunConfig(
        task="features",
        risk=0.05,
        banks=banks,
        main={"residual": "risk", "standalone": "anchored"},
        ownership=OwnershipConfig(bank=residual),
        router=RouterConfig(shape="keys"),
    )


@functools.cache
def shared_examples() -> Split:
    """Return the shared subset of the ten known classes."""
    return draw_features(200, 1)


@functools.cache
def calibration_examples() -> Split:
    """Return the calibration set of the ten known classes."""
    return draw_features(200, 3)


@functools.cache
def known_experts(shape: str = "mlp") -> tuple[Expert, ...]:
    """Return one expert for each of the five known domains."""
    datasets = expert_datasets(DOMAINS, draw_features(200), shared_examples(), draw_features(50, 2))
    return tuple(train_experts(small_config(shape), datasets, identity_base(), 0, 1.0, NAMES, {}))


def draw_new(labels: Sequence[str], count: int = 60, seed: int = 0) -> Split:
    """Return features of new classes, each around a centre of its own; labels count them from 0."""
    centres = [2 * torch.randn(FEATURES, generator=generator(0, "new centre", label)) for label in labels]
    index = torch.arange(count) % len(labels)
    noise = torch.randn(count, FEATURES, generator=generator(seed, "new features", *labels))
    return Split(torch.stack(centres)[index] + noise, index, torch.full((count,), -1))


@functools.cache
def new_expert(name: str, labels: tuple[str, ...], known: int = 0, shape: str = "mlp") -> Expert:
    """Return an expert that brings these labels, and that has examples of the first known classes as well."""
    new = draw_new(labels)
    own = draw_features(200, 5)
    own = own.only((own.labels < known).nonzero()[:, 0])
    inputs, numbers = torch.cat([new.inputs, own.inputs]), torch.cat([new.labels + CLASSES, own.labels])
    data = Split(inputs, numbers, torch.full_like(numbers, -1))
    dataset = expert_data(name, data, data.only(torch.arange(0)), shared_examples(), ())
    base = extend_base(identity_base(), len(labels))
    (expert,) = train_experts(small_config(shape), [dataset], base, 0, 1.0, (*NAMES, *labels), {})
    return expert


def small_model(*new: Expert, shape: str = "mlp") -> Model:
    """Return a model of the five known experts and these, with the router `keys`."""
    config, base = small_config(shape), identity_base()
    banks = config.of_form("residual", "standalone")
    experts = {expert.name: expert for expert in known_experts(shape)}
    library = ExpertLibrary(experts, base, banks, config.ownership, dict, NAMES)
    info = ModelInfo(tuple(DOMAINS), NAMES, tuple(number // 2 for number in range(CLASSES)), shape=(FEATURES,))
    model = Model.assemble(info, config, torch.as_tensor, base, library, None)
    model.calibration_set, model.anchor_data = calibration_examples, shared_examples
    for expert in new:
        library.add(expert)
    return model
