"""What each learner is trained on: the shared subset, the parts of validation, and the data of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from redx.config import ModelConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.errors import RedxError
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

    def choices(self, calibration: float, seed: int) -> Split:
        """Return the validation examples for choices, given the share that is for risk control."""
        return self.validation.only(split_validation(self, calibration, seed)[0])


def read_features(path: Path) -> Features:
    """Return the features in a file."""
    return Features(*(read_feature_split(path, part) for part in ("train", "validation", "test")))


def read_feature_split(path: Path, part: str) -> Split:
    """Return one split of the features in a file; the others are not read."""
    tensors = read_tensors(path, part)
    with guarded(path, "does not hold the features of a run", "repeat the run"):
        split = Split(**without_prefix(tensors, part))
        indices = (split.labels, split.domains)
        if any(index.shape != split.inputs.shape[:1] for index in indices) or split.domains.dtype != torch.int64:
            raise ValueError("its tensors do not describe the same examples")
    return split


def read_choices(path: Path, calibration: float, seed: int) -> Split:
    """Return the validation examples for choices among the features in a file; parameters as of `split_validation`."""
    validation = read_feature_split(path, "validation")
    return validation.only(split_validation(validation, calibration, seed)[0])


def read_inputs(path: Path, part: Literal["choice", "test"], count: int) -> Tensor:
    """Return the inputs of so many choice or test examples, as their task read them; a file of features holds them."""
    tensors = read_tensors(path, "raw")
    with guarded(path, f"does not hold the inputs of its {part} examples", "repeat the run"):
        inputs = tensors[f"raw.{part}"]
        if len(inputs) != count:
            raise ValueError("inputs of other examples")
    return inputs


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


def expert_data(name: str, own: Split, validation: Split, anchors: Split, domains: Sequence[str]) -> ExpertData:
    """Return the data of one expert; shared examples of its own domain are left out of its anchors.

    Parameters
    ----------
    name
        The expert's domain.
    own, validation
        Its own examples, for training and for metrics.
    anchors
        The shared examples.
    domains
        Names of the domains, as the shared examples count them; a new domain is not among them.
    """
    index = domains.index(name) if name in domains else -1
    return ExpertData(name, own, _where(anchors, anchors.domains != index), validation)


def read_shared(path: Path) -> Split:
    """Return the shared examples in a file: features, labels and domains."""
    tensors = read_tensors(path)
    if "calibration.inputs" in tensors:
        raise RedxError(
            f"{path} was written by an older version, which put calibration examples into it; "
            "repeat the run with --out ANOTHER."
        )
    with guarded(path, "is no shared subset", "repeat the run with --out ANOTHER"):
        shared = Split(**tensors)
        indices = (shared.labels, shared.domains)
        if any(index.shape != shared.inputs.shape[:1] or index.dtype != torch.int64 for index in indices):
            raise ValueError("its tensors do not describe the same examples")
        if not shared.inputs.is_floating_point() or not bool(shared.inputs.isfinite().all()):
            raise ValueError("its inputs are no features")
    return shared


def shared_rows(data: Data, share: float, seed: int, least: int = 0) -> Tensor:
    """Return the training rows of the shared subset: this share of every label's examples, and at least `least`."""
    draw = generator(seed, "shared subset")
    chosen = []
    for label in data.train.labels.unique():
        rows = torch.nonzero(data.train.labels == label)[:, 0]
        chosen.append(rows[torch.randperm(len(rows), generator=draw)[: max(round(share * len(rows)), least)]])
    rows = torch.cat(chosen).sort().values
    if not len(rows):
        raise RedxError(
            f"A share of {share:g} of {len(data.train)} training examples is no example of any label, so "
            "the base has none to learn from; choose a larger share."
        )
    return rows


def split_validation(examples: Data | Features | Split, calibration: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the validation rows for choices (early stopping, tuning, comparing) and those for risk control alone.

    Parameters
    ----------
    examples
        The data or features of a run, or their validation split alone.
    calibration
        Share of the rows that are for risk control.
    seed
        The seed of the run.
    """
    validation = examples if isinstance(examples, Split) else examples.validation
    rows = torch.randperm(len(validation), generator=generator(seed, "calibration"))
    cut = round((1 - calibration) * len(rows))
    return rows[:cut].sort().values, rows[cut:].sort().values


def select_anchors(data: Data, config: ModelConfig, seed: int) -> Split:
    """Return the shared subset of a run, as raw inputs."""
    return data.train.only(shared_rows(data, config.base.share, seed, config.base.least))


def expert_datasets(domains: Sequence[str], train: Split, anchors: Split, validation: Split) -> list[ExpertData]:
    """Return the data of each domain's expert; none holds training data of another domain."""

    def own(split: Split, index: int) -> Split:
        return _where(split, split.domains == index)

    return [
        expert_data(name, own(train, index), own(validation, index), anchors, domains)
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
