"""A run with trained blocks of a tiny language model, and its checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.runs import run_on_language_model
from redx.io.reading import read_json
from redx.runs import checkpoint, shrinking

MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def blocks_folder(qwen: Path, make_once: MakeOnce) -> Path:
    """A folder with a run, its cache, a full checkpoint and a slim one.

    The run follows the papers' recipe on three tiny blocks, of which the last is trained, with ownership and stage 4.
    """

    def make(folder: Path) -> None:
        epochs = {"base": 3, "experts": 2, "router": 2}
        changes: dict[str, Any] = {"trunk": "blocks", "train_blocks": 1, "limit": 600, "epochs": epochs}
        done = run_on_language_model("addition", qwen, folder, study="none", integrate=True, **changes)
        full = checkpoint.export_run(done.folder, folder / "full.safetensors").path
        shrinking.shrink(full, 1, out=folder / "full.slim.safetensors")

    return make_once("blocks", make)


@pytest.fixture
def blocks_cache(blocks_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the cache of the run with trained blocks."""
    monkeypatch.setenv("REDX_CACHE", str(blocks_folder / "cache"))
    return blocks_folder / "cache"


@pytest.fixture
def blocks(blocks_folder: Path, blocks_cache: Path) -> redx.Run:
    """The run with trained blocks; tests must not change it."""
    folder = blocks_folder / "run"
    return redx.Run(folder, read_json(folder / "summary.json"))


@pytest.fixture
def full(blocks_folder: Path, blocks_cache: Path) -> Path:
    """The full checkpoint of the run with trained blocks."""
    return blocks_folder / "full.safetensors"


@pytest.fixture
def slim(blocks_folder: Path, blocks_cache: Path) -> Path:
    """The slim checkpoint of the run with trained blocks."""
    return blocks_folder / "full.slim.safetensors"
