"""A tiny language model with three random adapters, and a library of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.adapters import save_adapter
from helpers.language_models import save_qwen3
from redx.adapters.base import BaseLM, load_base
from redx.adapters.composed import ComposedLM
from redx.adapters.library import add_adapter

NAMES = ("a", "b", "c")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen3(tmp_path_factory.mktemp("adapters") / "tiny")


@pytest.fixture(scope="session")
def adapter_folders(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("folders")
    return {name: save_adapter(model_folder, parent / name, seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def base(model_folder: Path) -> BaseLM:
    return load_base(str(model_folder))


@pytest.fixture
def composed(base: BaseLM, adapter_folders: dict[str, Path]) -> ComposedLM:
    model = ComposedLM(base)
    for name, folder in adapter_folders.items():
        model.add(name, folder)
    return model


@pytest.fixture
def library(base: BaseLM, adapter_folders: dict[str, Path], tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for name, folder in adapter_folders.items():
        add_adapter(run, folder, base, name)
    return run
