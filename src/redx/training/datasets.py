"""What each learner is trained on: the shared subset, the parts of validation, and the data of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from redx.config import ModelConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.io.files import without_prefix
from redx.io.reading import guarded
from redx.io.safetensors_files import read_tensors
from redx.seeding import generator

BATCH = 1000  # inputs that go through an encoder at once


@dataclass(frozen=True)
class Features:
    """The splits of a run as the features that its base computes; `features.safetensors` holds them."""

    train: Split
    validation: Split
    test: Split

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be saved."""
        splits = vars(self).items()  # the splits may be views of one tensor, which a file cannot hold
        return {f"{part}.{name}": value.clone() for part, split in splits for name, value in vars(split).items()}


def read_features(path: Path) -> Features:
    """Return the features in a file."""
    tensors = read_tensors(path)
    with guarded(path, "does not hold the features of a run", "repeat the run"):
        splits = [Split(**without_prefix(tensors, part)) for part in ("train", "validation", "test")]
        for split in splits:
            indices = (split.labels, split.domains)
            if any(index.shape != split.inputs.shape[:1] for index in indices) or split.domains.dtype != torch.int64:
                raise ValueError("its tensors do not describe the same examples")
    return Features(*splits)


@dataclass(frozen=True)
class ExpertData:
    """Everything that one expert is trained on.

    Attributes
    ----------
    name
        The expert's domain.
    own
        Training examples of its own domain.
    anchors
        Examples of the shared subset outside its domain, on which it must keep the base's answers.
    validation
        Validation examples of its own domain, for early stopping and metrics.
    """

    name: str
    own: Split
    anchors: Split
    validation: Split

    def to(self, device: str) -> ExpertData:
        """Return the same data on another device."""
        return ExpertData(self.name, *(split.to(device) for split in (self.own, self.anchors, self.validation)))


@dataclass(frozen=True)
class SharedData:
    """What is shared with everybody who trains an expert.

    Attributes
    ----------
    anchors
        The shared subset of the training data.
    calibration
        Held-out examples that set the cut-off of risk control.
    """

    anchors: Split
    calibration: Split

    def for_expert(self, name: str, own: Split, validation: Split, domains: Sequence[str]) -> ExpertData:
        """Return the data of one expert; shared examples of its own domain are left out of its anchors."""
        index = domains.index(name) if name in domains else -1
        return ExpertData(name, own, _where(self.anchors, self.anchors.domains != index), validation)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be saved."""
        both = {"anchors": self.anchors, "calibration": self.calibration}
        return {f"{part}.{name}": value for part, split in both.items() for name, value in vars(split).items()}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> SharedData:
        """Return what `tensors()` described."""
        anchors, calibration = (Split(**without_prefix(tensors, part)) for part in ("anchors", "calibration"))
        return SharedData(anchors, calibration)


def read_shared(path: Path) -> SharedData:
    """Return the shared data in a file."""
    tensors = read_tensors(path)
    with guarded(path, "is no shared subset", "repeat the run"):
        shared = SharedData.from_tensors(tensors)
        for split in (shared.anchors, shared.calibration):
            indices = (split.labels, split.domains)
            if any(index.shape != split.inputs.shape[:1] or index.dtype != torch.int64 for index in indices):
                raise ValueError("its tensors do not describe the same examples")
    return shared


def shared_rows(data: Data, share: float, seed: int, least: int = 0) -> Tensor:
    """Return the training rows of the shared subset: this share of every label's examples, and at least `least`."""
    draw = generator(seed, "shared subset")
    chosen = []
    for label in data.train.labels.unique():
        rows = torch.nonzero(data.train.labels == label)[:, 0]
        chosen.append(rows[torch.randperm(len(rows), generator=draw)[: max(round(share * len(rows)), least)]])
    return torch.cat(chosen).sort().values


def split_validation(data: Data | Features, calibration: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the validation rows for choices (early stopping, tuning) and those for risk control alone."""
    rows = torch.randperm(len(data.validation), generator=generator(seed, "calibration"))
    cut = round((1 - calibration) * len(rows))
    return rows[:cut].sort().values, rows[cut:].sort().values


def select_shared(data: Data, config: ModelConfig, seed: int) -> SharedData:
    """Return the shared data of a run, as raw inputs."""
    _, calibration = split_validation(data, config.ownership.calibration, seed)
    anchors = shared_rows(data, config.base.share, seed, config.base.least)
    return SharedData(data.train.only(anchors), data.validation.only(calibration))


def expert_datasets(domains: Sequence[str], train: Split, shared: SharedData, validation: Split) -> list[ExpertData]:
    """Return the data of each domain's expert; none holds training data of another domain."""
    return [
        shared.for_expert(
            name, _where(train, train.domains == index), _where(validation, validation.domains == index), domains
        )
        for index, name in enumerate(domains)
    ]


def distorted_copy(split: Split, seed: int, number: int) -> Split:
    """Return the same images, each randomly distorted."""
    draw = generator(seed, "copy", number)
    images = [distort(batch, draw).round().to(split.inputs.dtype) for batch in split.inputs.split(BATCH)]
    return Split(torch.cat(images), split.labels, split.domains)


def concatenate(splits: Sequence[Split]) -> Split:
    """Return several splits as one."""
    return Split(*(torch.cat([getattr(split, field.name) for split in splits]) for field in fields(Split)))


def _where(split: Split, chosen: Tensor) -> Split:
    return split.only(torch.nonzero(chosen)[:, 0])
