"""Fixtures: one small finished run that many tests look at."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import redx
import tiny_lm
from asking import Ask
from redx.cli import main
from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer
from tiny import changes

torch.set_num_threads(1)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # read at the first product, here and in children


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """The toy, two seeds, hardly trained."""
    return redx.run("toy", "quick", seeds=[0, 1], out=tmp_path_factory.mktemp("runs") / "toy", **changes())


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model of a real kind."""
    return tiny_lm.qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3")


def small(qwen: Path, place: Path, task: str, **changes: Any) -> redx.Run:
    """A run on the tiny language model, hardly trained, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDX_CACHE", str(place / "cache"))
        few = {"epochs": {"base": 2, "experts": 1, "router": 1}, "study": "quick"}
        return redx.run(task, "quick", out=place / "run", backbone=str(qwen), blocks=[1], limit=800, **few, **changes)


@pytest.fixture(scope="session")
def addition(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """Addition in words."""
    return small(qwen, tmp_path_factory.mktemp("addition"), "addition")


@pytest.fixture(scope="session")
def chains(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """Chains of steps, with a decomposer."""
    learn = PointerDecomposer.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PointerDecomposer, "train", classmethod(lambda cls, seed: learn(seed, samples=500)))
        return small(qwen, tmp_path_factory.mktemp("steps"), "steps")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()  # what fixtures said
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test writes to the folder it was started in."""
    monkeypatch.chdir(tmp_path)
