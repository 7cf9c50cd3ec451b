"""Experts from lessons: every bank and the ownership score of each, with what is to be known of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition.parts import predicted_classes
from redx.config import RunConfig
from redx.data.dataset import Split
from redx.models.banks import Bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.ownership import OwnershipScorer
from redx.training.banks import train_bank, train_ownership
from redx.training.datasets import ExpertData

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def train_experts(
    config: RunConfig,
    taught: Sequence[ExpertData],
    base: Base,
    seed: int,
    unit: float,
    classes: Sequence[str],
    mark: dict[str, Any],
    dtype: str = "float32",
) -> list[Expert]:
    """An expert a lesson, none of which depends on the others; kept in some precision."""
    chosen = {key: bank for key, bank in config.of_form("standalone", "residual").items() if bank.of is None}
    banks = {key: train_bank(key, bank, taught, base, seed, unit) for key, bank in chosen.items()}
    alone = {key: split_bank(bank) for key, bank in banks.items()}
    if any(bank.owned for bank in config.banks.values()):
        alone["ownership"] = train_ownership(config.ownership, taught, base, seed)
    made = []
    for index, lesson in enumerate(taught):
        tensors = {f"{key}.{name}": value for key, files in alone.items() for name, value in files[index].items()}
        tensors = {
            name: value.to(DTYPES[dtype]) if value.is_floating_point() else value for name, value in tensors.items()
        }
        facts = {
            "schema": 1,
            "domain": lesson.name,
            "kind": "residual and standalone heads" if any(map(_corrects, banks)) else "standalone heads",
            "task": config.task,
            "preset": config.preset,
            "seed": seed,
            "classes": [classes[label] for label in lesson.own.labels.unique().tolist()] if classes else [],
            "dtype": dtype,
            "banks": {key: config.banks[key].model_dump(mode="json") for key in banks},
            "training": {"examples": len(lesson.own), "anchors": len(lesson.anchors)},
            "metrics": _measure(lesson.check, {**banks}, index, base, unit),
            "base": mark,
        }
        if "ownership" in alone:
            facts["ownership"] = _ownership(
                config, lesson, OwnershipScorer(config.ownership, alone["ownership"][index], base)
            )
        made.append(Expert(facts, tensors))
    return made


def _corrects(key: str) -> bool:
    return key.startswith("residual/")


def _measure(check: Split, banks: dict[str, Bank], index: int, base: Base, unit: float) -> dict[str, Any]:
    """Accuracy on held-out examples of its own domain: the base's, and its own in every bank."""

    def accuracy(said: Tensor) -> float | None:
        return float((predicted_classes(said / unit) == check.labels).double().mean()) if len(check) else None

    logits = base.classify(check.inputs)
    found: dict[str, Any] = {"examples": len(check), "base": accuracy(logits)}
    for key, bank in banks.items():
        said = run_bank(bank, check.inputs)[:, index]
        found[key] = accuracy(logits + said if _corrects(key) else said)
    return found


def _ownership(config: RunConfig, lesson: ExpertData, owner: OwnershipScorer) -> dict[str, Any]:
    cutoff = owner.cutoff(config.ownership.alpha)
    return {
        "score": config.ownership.score,
        "alpha": config.ownership.alpha,
        "cutoff": cutoff if math.isfinite(cutoff) else None,  # None: too few held-out examples, so it stays silent
        "calibration": len(lesson.calibration),
        "speaks": float(owner.speaks(lesson.check.inputs, config.ownership.alpha).double().mean())
        if len(lesson.check)
        else None,
    }
