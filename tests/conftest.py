"""Fixtures of all tests: finished runs, tiny language models, and commands."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import redx
from helpers.commands import Answer, Ask
from helpers.runs import few_epochs, run_on_language_model
from redx.cli import main
from redx.models.composed import Model

torch.set_num_threads(1)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # read at the first product, here and in children

# The same cases in every run, and no time limit, since the machines that run the tests are shared.
settings.register_profile("redx", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("redx")


@pytest.fixture(autouse=True)
def _temporary_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test writes to the folder that it was started in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command in this process: its exit code, stdout and stderr."""

    def run(*words: object) -> Answer:
        capsys.readouterr()  # discard the output of fixtures
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """A finished run of the toy with two seeds and few epochs; tests must not change it."""
    return redx.run("toy", "quick", seeds=[0, 1], out=tmp_path_factory.mktemp("runs") / "toy", **few_epochs())


@pytest.fixture
def toy_copy(toy: redx.Run, tmp_path: Path) -> Path:
    """The folder of a copy of the toy run, which a test may change."""
    return Path(shutil.copytree(toy.folder, tmp_path / "toy"))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder in a folder."""
    from helpers.language_models import save_qwen3

    return save_qwen3(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder in a folder."""
    from helpers.language_models import save_bert

    return save_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder for one test."""
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def addition(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """A finished run of addition in words on a tiny language model; tests must not change it."""
    return run_on_language_model("addition", qwen, tmp_path_factory.mktemp("addition"))


@pytest.fixture
def addition_copy(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of the addition run, which a test may change."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture
def addition_model(addition_copy: Path) -> Model:
    """The model of a run of addition, which a test may change."""
    return redx.load(addition_copy)


@pytest.fixture(scope="session")
def chains(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """A finished run of chains of steps, with a decomposer that was trained on few sentences."""
    from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer

    train = PointerDecomposer.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PointerDecomposer, "train", classmethod(lambda cls, seed: train(seed, samples=500)))
        return run_on_language_model("steps", qwen, tmp_path_factory.mktemp("steps"))
