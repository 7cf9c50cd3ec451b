"""Run folders that hold nothing but what a check reads: settings, hashes of the data, and parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

import redx
from helpers.parts import draw_parts
from redx.composition.parts import Parts
from redx.composition.risk import RiskControl
from redx.config import BankId
from redx.models.calibration import write_calibration
from redx.runs.parts import write_parts

DOMAINS = ("north", "south", "east")


def draw_answers(examples: int = 60, seed: int = 0) -> Parts:
    """Return parts of three domains, on which the base is often right and some experts do harm."""
    parts = draw_parts(examples, len(DOMAINS), 4, seed, torch.float32)
    helped = parts.base + 6 * torch.nn.functional.one_hot(parts.true_labels(), 4)
    return replace(parts, base=helped.float())


def with_answers(right: list[bool], domains: list[int] | None = None) -> Parts:
    """Return parts without any residual, on which the answers are right or wrong as given."""
    labels = torch.zeros(len(right), dtype=torch.long)
    base = torch.tensor([[1.0, 0.0] if one else [0.0, 1.0] for one in right])
    zeros = torch.zeros(len(right), len(DOMAINS))
    where = torch.tensor(domains or [0] * len(right))
    return Parts(base, torch.zeros(len(right), len(DOMAINS), 2), zeros, labels, where)


def write_run(folder: Path, like: redx.Run, *parts: Parts, test_hash: str = "same") -> Path:
    """Write a run folder with one seed per record of parts; its other settings are those of a finished run."""
    config = json.loads((like.folder / "config.json").read_text()) | {"seeds": list(range(len(parts)))}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    hashes = {str(seed): {"train": "a", "validation": "b", "test": test_hash} for seed in range(len(parts))}
    (folder / "data.json").write_text(json.dumps({"split": "random", "sha256": hashes}))
    bank = BankId("residual", config["main"]["residual"])
    for seed, one in enumerate(parts):
        write_parts(folder / f"seed-{seed}" / "parts", {bank: one}, DOMAINS, one.experts)
    return folder


def write_risk(run: Path, seed: int, risk: float) -> None:
    """Write the calibration of one seed on 500 examples."""
    thresholds = {region: torch.linspace(-3, 3, 500) for region in ("simplex", "box")}
    folder = run / f"seed-{seed}"
    calibration = RiskControl.from_thresholds(thresholds, risk)
    write_calibration(folder / "risk.json", folder / "thresholds.safetensors", calibration)
