"""Runs small enough for tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import redx
from redx.config import RunConfig
from redx.tasks import get_preset


def few_epochs(task: str = "toy", epochs: int = 60) -> dict[str, Any]:
    """Return the changes that make a run of under a second out of the quick preset of a toy task."""
    config: RunConfig = get_preset(task, "quick")

    def shorten(settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"training": settings["training"] | {"epochs": epochs}}

    settings = config.model_dump()
    return {
        "banks": {bank_id: shorten(bank) for bank_id, bank in settings["banks"].items()},
        "router": shorten(settings["router"]),
        "study": "none",
    }


def run_on_language_model(task: str, language_model: Path, folder: Path, **changes: Any) -> redx.Run:
    """Run a task on a tiny language model with very few epochs, in FOLDER/run with the cache FOLDER/cache."""
    few = {"epochs": {"base": 2, "experts": 1, "router": 1}, "study": "quick", "blocks": [1], "limit": 800}
    with mock.patch.dict(os.environ, {"REDX_CACHE": str(folder / "cache")}):
        return redx.run(task, "quick", out=folder / "run", backbone=str(language_model), **(few | changes))


def run_on_clouds(folder: Path, file: Path) -> redx.Run:
    """Run the task `features` on a file of clouds with a few epochs, within a second."""
    epochs = {"base": 3, "experts": 2, "router": 2}
    return redx.run("features", "quick", out=folder, file=str(file), study="none", epochs=epochs)


def repeat_clouds(folder: Path, run: redx.Run) -> redx.Run:
    """Repeat the command of a run on clouds in another folder."""
    return run_on_clouds(folder, run.folder.with_suffix(".npz"))


def contents(run: Path) -> dict[str, bytes]:
    """Return the content of every file of a run but its log, by path."""
    every = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    return every | {"run.log": b"", ".lock": b""}


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without what differs between two equal runs: seconds and memory."""
    return {name: value for name, value in summary.items() if name != "cost"}


def text_settings(language_model: Path, trunk: str = "mlp") -> dict[str, Any]:
    """Return the changes that make a run of seconds on a tiny language model out of a quick preset."""
    return {
        "backbone": str(language_model),
        "limit": 600,
        "epochs": {"base": 2, "experts": 1, "router": 2},
        "blocks": [1, 2],
        "pooling": "tokens" if trunk == "sum" else "mean",
        "trunk": trunk,
        "train_blocks": 1,
    }


@dataclass(frozen=True)
class RunCopy:
    """A copy of a finished run, which a test may change, and the names of its experts."""

    folder: Path
    names: tuple[str, ...]

    @property
    def seed(self) -> Path:
        """The folder of its first seed."""
        return self.folder / "seed-0"

    def removed(self, name: str) -> Path:
        """The folder of an expert after it was removed."""
        return self.seed / "removed" / name
