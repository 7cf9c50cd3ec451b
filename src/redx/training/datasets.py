"""Who learns from what: the shared subset, the parts of validation, and the lesson of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from redx.config import RunConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.io import files
from redx.seeding import generator

BATCH = 1000  # images that are handled at once


@dataclass(frozen=True)
class ExpertData:
    """All that one expert may see: its own domain, anchors outside it (shared subset), its part of validation.

    Held-out examples outside its domain, `calibration`, set its cut-off and teach it nothing.
    """

    name: str
    own: Split
    anchors: Split
    check: Split
    calibration: Split


def shared_rows(data: Data, part: float, seed: int, least: int = 0) -> Tensor:
    """Rows of the shared subset: this part of every label's training examples, at least so many where there are."""
    draw = generator(seed, "shared subset")
    chosen = []
    for label in data.train.labels.unique():
        rows = torch.nonzero(data.train.labels == label)[:, 0]
        chosen.append(rows[torch.randperm(len(rows), generator=draw)[: max(round(part * len(rows)), least)]])
    return torch.cat(chosen).sort().values


def split_validation(data: Data, calibration: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of validation for choices (early stopping, tuning), and for conformal cut-offs alone."""
    rows = torch.randperm(len(data.validation), generator=generator(seed, "calibration"))
    cut = round((1 - calibration) * len(rows))
    return rows[:cut].sort().values, rows[cut:].sort().values


def select_shared(data: Data, config: RunConfig, seed: int) -> SharedData:
    """What is shared with everybody who trains an expert, as raw inputs."""
    _, calibrate = split_validation(data, config.ownership.calibration, seed)
    return SharedData(
        data.train.only(shared_rows(data, config.base.share, seed, config.base.least)), data.validation.only(calibrate)
    )


def distorted_copy(split: Split, seed: int, number: int) -> Split:
    """The same images by another hand: a distorted copy."""
    draw = generator(seed, "copy", number)
    images = [distort(some, draw).round().to(split.inputs.dtype) for some in split.inputs.split(BATCH)]
    return Split(torch.cat(images), split.labels, split.domains)


def concatenate(splits: Sequence[Split]) -> Split:
    """Several splits as one."""
    return Split(*(torch.cat([getattr(split, field.name) for split in splits]) for field in fields(Split)))


def expert_datasets(domains: Sequence[str], train: Split, shared: SharedData, check: Split) -> list[ExpertData]:
    """Each domain's lesson; nothing of another domain's own data is in it."""
    return [
        shared.lesson(name, _where(train, train.domains == index), _where(check, check.domains == index), domains)
        for index, name in enumerate(domains)
    ]


@dataclass(frozen=True)
class SharedData:
    """What goes with the base to whoever trains an expert: the shared subset, and held-out examples for cut-offs."""

    anchors: Split
    calibration: Split

    def lesson(self, name: str, own: Split, check: Split, domains: Sequence[str]) -> ExpertData:
        """The lesson of one expert; shared examples of its own domain are no anchors."""
        index = domains.index(name) if name in domains else -1
        anchors, calibration = (_where(some, some.domains != index) for some in (self.anchors, self.calibration))
        return ExpertData(name, own, anchors, check, calibration)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be saved."""
        both = {"anchors": self.anchors, "calibration": self.calibration}
        return {f"{part}.{name}": value for part, split in both.items() for name, value in vars(split).items()}

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> SharedData:
        parts = [
            {name.split(".")[1]: value for name, value in tensors.items() if name.startswith(f"{part}.")}
            for part in ("anchors", "calibration")
        ]
        return SharedData(Split(**parts[0]), Split(**parts[1]))


def _where(split: Split, chosen: Tensor) -> Split:
    return split.only(torch.nonzero(chosen)[:, 0])


def read_shared(folder: Path) -> SharedData:
    """The shared subset that goes with the base."""
    try:
        return SharedData.of(files.read_tensors(folder / "shared.safetensors"))
    except TypeError as error:
        raise RedxError(f"{folder / 'shared.safetensors'} is no shared subset; repeat the run.") from error
