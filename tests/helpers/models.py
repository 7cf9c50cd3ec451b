"""Loaded models with inputs for them, and a small frozen base with features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redx.composition import rules
from redx.data.dataset import Split
from redx.model.model import Model
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.seeding import generator
from redx.training.datasets import ExpertData, expert_datasets

FEATURES, CLASSES, DOMAINS = 16, 10, "abcde"  # two classes per domain


@dataclass(frozen=True)
class LoadedModel:
    """A model, and inputs that it reads."""

    model: Model
    inputs: Any

    def scores(self) -> Tensor:
        """Return the scores that the rule `red` composes for the inputs."""
        parts, rule = self.model.parts(self.inputs), rules.get_rule("red")
        return rules.compose(rule, parts, rule.weights(parts))


def identity_base() -> Base:
    """Return a base that classifies features as they are, with random weights."""
    weight = torch.randn(FEATURES, CLASSES, generator=generator(0, "classifier"))
    return Base(IdentityEncoder(), weight, torch.zeros(CLASSES), torch.zeros(FEATURES), torch.ones(FEATURES))


def changed_base(**changes: Any) -> Base:
    """Return `identity_base` with another encoder, weight, bias, mean or scale."""
    base = identity_base()
    names = ("encoder", "weight", "bias", "mean", "scale")
    return Base(*(changes.get(name, getattr(base, name)) for name in names))


def draw_features(count: int, seed: int = 0) -> Split:
    """Return features of ten classes in five domains."""
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, FEATURES, generator=generator(0, "centres"))
    noise = torch.randn(count, FEATURES, generator=generator(seed, "features"))
    return Split(centres[labels] + noise, labels, labels // 2)


def draw_expert_datasets(train: Split) -> list[ExpertData]:
    """Return the data of five experts for these training features."""
    return expert_datasets(DOMAINS, train, draw_features(200, 1), draw_features(100, 2))
