"""Fixtures: one small finished run that many tests look at."""

import os
from pathlib import Path

import pytest
import torch

import redx
from tiny import changes

torch.set_num_threads(1)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # read at the first product, here and in children


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """The toy, two seeds, hardly trained."""
    return redx.run("toy", "quick", seeds=[0, 1], out=tmp_path_factory.mktemp("runs") / "toy", **changes())


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test writes to the folder it was started in."""
    monkeypatch.chdir(tmp_path)
