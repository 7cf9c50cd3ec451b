"""Who learns from what: the shared subset, the parts of validation, and the lesson of each expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

from redx.config import RunConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.seeding import generator

IMAGES = 1000  # images that are handled at once


@dataclass(frozen=True)
class Lesson:
    """All that one expert may see: its own domain, anchors outside it (shared subset), its part of validation.

    Held-out examples outside its domain, `calibration`, set its cut-off and teach it nothing.
    """

    name: str
    own: Split
    anchors: Split
    check: Split
    calibration: Split


def share(data: Data, part: float, seed: int, least: int = 0) -> Tensor:
    """Rows of the shared subset: this part of every label's training examples, at least so many where there are."""
    draw = generator(seed, "shared subset")
    chosen = []
    for label in data.train.labels.unique():
        rows = torch.nonzero(data.train.labels == label)[:, 0]
        chosen.append(rows[torch.randperm(len(rows), generator=draw)[: max(round(part * len(rows)), least)]])
    return torch.cat(chosen).sort().values


def halve(data: Data, calibration: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of validation for choices (early stopping, tuning), and for conformal cut-offs alone."""
    rows = torch.randperm(len(data.validation), generator=generator(seed, "calibration"))
    cut = round((1 - calibration) * len(rows))
    return rows[:cut].sort().values, rows[cut:].sort().values


def set_apart(data: Data, config: RunConfig, seed: int) -> Shared:
    """What is shared with everybody who trains an expert, as raw inputs."""
    _, calibrate = halve(data, config.ownership.calibration, seed)
    return Shared(
        data.train.only(share(data, config.base.share, seed, config.base.least)), data.validation.only(calibrate)
    )


def copy(split: Split, seed: int, number: int) -> Split:
    """The same images by another hand: a distorted copy."""
    draw = generator(seed, "copy", number)
    images = [distort(some, draw).round().to(split.inputs.dtype) for some in split.inputs.split(IMAGES)]
    return Split(torch.cat(images), split.labels, split.domains)


def pool(splits: Sequence[Split]) -> Split:
    """Several splits as one."""
    return Split(*(torch.cat([getattr(split, field.name) for split in splits]) for field in fields(Split)))


def teach(domains: Sequence[str], train: Split, shared: Shared, check: Split) -> list[Lesson]:
    """Each domain's lesson; nothing of another domain's own data is in it."""
    return [
        shared.lesson(name, _where(train, train.domains == index), _where(check, check.domains == index), domains)
        for index, name in enumerate(domains)
    ]


@dataclass(frozen=True)
class Shared:
    """What goes with the base to whoever trains an expert: the shared subset, and held-out examples for cut-offs."""

    anchors: Split
    calibration: Split

    def lesson(self, name: str, own: Split, check: Split, domains: Sequence[str]) -> Lesson:
        """The lesson of one expert; shared examples of its own domain are no anchors."""
        index = domains.index(name) if name in domains else -1
        anchors, calibration = (_where(some, some.domains != index) for some in (self.anchors, self.calibration))
        return Lesson(name, own, anchors, check, calibration)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be saved."""
        both = {"anchors": self.anchors, "calibration": self.calibration}
        return {f"{part}.{name}": value for part, split in both.items() for name, value in vars(split).items()}

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> Shared:
        parts = [
            {name.split(".")[1]: value for name, value in tensors.items() if name.startswith(f"{part}.")}
            for part in ("anchors", "calibration")
        ]
        return Shared(Split(**parts[0]), Split(**parts[1]))


def _where(split: Split, chosen: Tensor) -> Split:
    return split.only(torch.nonzero(chosen)[:, 0])


def draw_rows(splits: Sequence[Split], count: int, draws: Sequence[Generator]) -> Tensor:
    """Random rows of each split, from its own generator: (K, B)."""
    pairs = zip(splits, draws, strict=True)
    return torch.stack([torch.randint(len(split), (count,), generator=draw) for split, draw in pairs])


def gather(splits: Sequence[Split], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Row k of `rows` taken from split k: (K, B, E) and (K, B)."""
    pairs = list(zip(splits, rows, strict=True))
    return torch.stack([split.inputs[some] for split, some in pairs]), torch.stack(
        [s.labels[some] for s, some in pairs]
    )


def hide(x: Tensor, share: float, draws: Sequence[Generator]) -> Tensor:
    """Dropout in which learner k draws from generator k: (K, B, E) to the same.

    A byte decides a value, eight of them a draw: drawing is what costs time here. So the share counts in 256ths.
    """
    cut = round(256 * share)
    if cut == 0:
        return x
    size = x[0].numel()
    words = [torch.empty(-(-size // 8), dtype=torch.long).random_(-(2**63), None, generator=draw) for draw in draws]
    kept = torch.stack([word.view(torch.uint8)[:size].view(x.shape[1:]) for word in words]) >= cut
    return x * kept / (1 - cut / 256)
