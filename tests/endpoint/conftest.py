"""A library of random adapters of a tiny model, with ownership scores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.adapters import save_library


@pytest.fixture(scope="session")
def kept_library(make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A library that tests must not change."""
    return make_once("library", save_library) / "run"


@pytest.fixture
def library(kept_library: Path, tmp_path: Path) -> Path:
    """A library that a test may change; the model stays where it is."""
    return Path(shutil.copytree(kept_library, tmp_path / "run"))
