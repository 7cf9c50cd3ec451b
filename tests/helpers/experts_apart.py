"""Experts of one base that are trained apart: with other precisions, other amounts of data, in other processes."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from helpers.runs import text_settings
from redx.config import BankConfig, BankId, TrainingConfig
from redx.models.banks import split_bank
from redx.models.base import Base
from redx.models.encoder import build_encoder
from redx.runs.presets import configure
from redx.tasks import get_task
from redx.training.banks import train_bank
from redx.training.datasets import ExpertData, expert_datasets
from redx.training.features import embed_splits

APART: dict[str, tuple[Any, float]] = {  # precision, and share of the domain's data
    "range_2_20": ("float32", 1.0),
    "range_41_60": ("bfloat16", 0.5),
    "range_81_100": ("float32", 0.25),
}


def read_base_and_data(language_model: Path, seed_folder: Path) -> tuple[Base, list[ExpertData]]:
    """Return the shared base and the data of every expert, as anybody would read them."""
    config = configure("addition", "quick", **text_settings(language_model))
    data = get_task("addition").load(config, 0)
    base = Base.from_tensors(load_file(seed_folder / "base.safetensors"), build_encoder(config))
    splits = embed_splits(config, base, data, 0)
    return base, expert_datasets(data.domains, splits.train, splits.anchors, splits.validation)


def train_expert(base: Base, datasets: list[ExpertData], name: str, file: Path) -> None:
    """Train one expert alone and save it, in half precision where it was trained so."""
    precision, share = APART[name]
    (data,) = (data for data in datasets if data.name == name)
    fewer = dataclasses.replace(data, own=data.own.only(torch.arange(round(share * len(data.own)))))
    training = TrainingConfig(epochs=3, precision=precision)
    config = BankConfig(shape="lowrank", hidden=16, anchor="truth", training=training)
    bank = train_bank(BankId("residual", "apart"), config, [fewer], base, 0, 1.0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    save_file({name: tensor.to(dtype) for name, tensor in split_bank(bank)[0].items()}, file)


def train_each_in_a_process(language_model: Path, seed_folder: Path, out: Path) -> None:
    """Train every expert in a process of its own, which reads the base and the data itself."""
    for name in APART:
        child = os.fork()
        if child == 0:
            train_expert(*read_base_and_data(language_model, seed_folder), name, out / f"{name}.there")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    train_each_in_a_process(*map(Path, sys.argv[1:]))
