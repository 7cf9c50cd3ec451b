"""Runs small enough for tests."""

from __future__ import annotations

import os
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
