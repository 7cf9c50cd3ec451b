"""Fixtures of all tests: finished runs, tiny language models, and commands."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

import redx
from helpers.commands import Answer, Ask
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import RunCopy, few_epochs, run_on_clouds, run_on_language_model
from helpers.tampering import unverified as unverified_files
from redx.cli import main
from redx.io.reading import read_json

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
def unverified() -> Iterator[None]:
    """Files of a run may be changed by hand: a test of what readers say of a file that its manifest does not notice."""
    with unverified_files():
        yield


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
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all worker processes of this test session have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def make_once(shared_folder: Path) -> MakeOnce:
    """Make a folder by a function that is called in one worker process only; the others wait for it."""

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder = shared_folder / name
        with FileLock(shared_folder / f"{name}.lock"):
            if not (shared_folder / f"{name}.done").exists():
                fill(folder)
                (shared_folder / f"{name}.done").touch()
        return folder

    return make


def finished(folder: Path) -> redx.Run:
    """Return the finished run in a folder."""
    return redx.Run(folder, read_json(folder / "summary.json"))


@pytest.fixture(scope="session")
def adapters(make_once: MakeOnce) -> redx.Run:
    """A finished run of three adapters of a tiny language model."""
    from helpers.adapters import run_tiny_adapters

    return finished(make_once("adapters", run_tiny_adapters) / "run")


@pytest.fixture(scope="session")
def toy(make_once: MakeOnce) -> redx.Run:
    """A finished run of the toy with two seeds and few epochs; tests must not change it."""
    return finished(make_once("toy", lambda folder: redx.run("toy", "quick", [0, 1], folder, **few_epochs())))


@pytest.fixture
def toy_copy(toy: redx.Run, tmp_path: Path) -> Path:
    """The folder of a copy of the toy run, which a test may change."""
    return Path(shutil.copytree(toy.folder, tmp_path / "toy"))


@pytest.fixture(scope="session")
def clouds(make_once: MakeOnce) -> redx.Run:
    """A finished run on features of four clouds with a few epochs, made within a second; tests must not change it."""

    def run(folder: Path) -> None:
        run_on_clouds(folder, write_arrays(folder.with_suffix(".npz"), **draw_clouds()))

    return finished(make_once("clouds", run))


@pytest.fixture
def clouds_copy(clouds: redx.Run, tmp_path: Path) -> Path:
    """The folder of a copy of the run on clouds, which a test may change."""
    return Path(shutil.copytree(clouds.folder, tmp_path / "run"))


@pytest.fixture(scope="session")
def qwen(make_once: MakeOnce) -> Path:
    """A tiny decoder in a folder."""
    from helpers.language_models import save_qwen3

    return make_once("qwen", save_qwen3)


@pytest.fixture(scope="session")
def bert(make_once: MakeOnce) -> Path:
    """A tiny encoder in a folder."""
    from helpers.language_models import save_bert

    return make_once("bert", save_bert)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder for one test."""
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def addition(qwen: Path, make_once: MakeOnce) -> redx.Run:
    """A finished run of addition in words on a tiny language model; tests must not change it."""
    folder = make_once("addition", lambda folder: run_on_language_model("addition", qwen, folder))
    return finished(folder / "run")


@pytest.fixture
def addition_copy(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of the addition run, which a test may change."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture(params=["clouds", pytest.param("addition", marks=pytest.mark.slow)])
def run_copy(request: pytest.FixtureRequest) -> RunCopy:
    """A copy of a run on features, or of one on texts, which a test may change."""
    folder: Path = request.getfixturevalue(f"{request.param}_copy")
    return RunCopy(folder, redx.load(folder).experts.names)


@pytest.fixture(scope="session")
def chains(qwen: Path, make_once: MakeOnce) -> redx.Run:
    """A finished run of chains of steps, with a decomposer that was trained on few sentences."""
    from redx.tasks.arithmetic.decomposers.pointer import PointerDecomposer

    train = PointerDecomposer.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PointerDecomposer, "train", classmethod(lambda cls, seed: train(seed, samples=500)))
        folder = make_once("steps", lambda folder: run_on_language_model("steps", qwen, folder))
    return finished(folder / "run")
