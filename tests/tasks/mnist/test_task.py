"""MNIST: fair splits, runs on real images that repeat exactly, and a model that reads images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import redx
from helpers.runs import without_times
from redx.data.dataset import Data
from redx.runs.presets import configure
from redx.tasks import get_task
from redx.tasks.mnist.download import mnist_folder
from redx.training import datasets

QUICK = {"limit": 3000, "epochs": {"base": 3, "experts": 2, "router": 2}, "study": "none"}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data() -> Data:
    return get_task("mnist").load(configure("mnist", "quick"), 0)


@pytest.fixture(scope="module")
def run_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], redx.Run]:
    """Run on few real images, through all stages, with a cache of its own for features."""
    images, cache = mnist_folder(), tmp_path_factory.mktemp("cache")

    def run(folder: Path) -> redx.Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REDX_CACHE", str(cache))
            return redx.run("mnist", "quick", out=folder, data_dir=str(images), integrate=True, **QUICK)

    return run


@pytest.fixture(scope="module")
def run(run_in: Callable[[Path], redx.Run], tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    return run_in(tmp_path_factory.mktemp("mnist") / "run")


def test_the_splits_have_their_sizes_and_follow_the_seed(data: Data) -> None:
    assert [len(split) for split in (data.train, data.validation, data.test)] == [54_000, 6_000, 10_000]
    for split in (data.train, data.validation):
        shares = torch.bincount(split.domains).double() / len(split)
        whole = torch.bincount(torch.cat([data.train.domains, data.validation.domains])).double() / 60_000
        assert torch.allclose(shares, whole, atol=2e-4)
    again, other = (get_task("mnist").load(configure("mnist", "quick"), seed) for seed in (0, 1))
    assert again.train.digest() == data.train.digest()
    assert other.train.digest() != data.train.digest()
    assert other.test.digest() == data.test.digest()


def test_the_shared_subset_is_balanced_and_calibration_is_apart(data: Data) -> None:
    rows = datasets.shared_rows(data, 0.1, 0)
    counts = torch.bincount(data.train.labels[rows]).double()
    assert torch.allclose(counts / torch.bincount(data.train.labels), torch.full((10,), 0.1).double(), atol=1e-3)
    choose, calibrate = datasets.split_validation(data, 2 / 3, 0)
    assert len(choose) + len(calibrate) == 6_000
    assert not set(choose.tolist()) & set(calibrate.tolist())


def test_a_run_on_real_images(run: redx.Run) -> None:
    rules = run.summary["rules"]
    assert {
        "red/plain",
        "red/anchored",
        "red/risk",
        "moe/plain",
        "moe/anchored",
        "global/linear",
        "global/mlp",
    } <= set(rules)
    assert rules["red"] == rules["red/risk"]
    assert rules["red/integrated"]["accuracy"] != rules["red/plain"]["accuracy"]
    assert rules["base"]["accuracy"]["mean"] > 0.5
    assert rules["red/risk"]["certified"]["1"] > rules["moe/plain"]["certified"]["1"]
    assert 0 <= rules["red"]["ece"] <= 1
    assert run.summary["data"]["seen_in_train"] == 0
    file = json.loads((run.folder / "data.json").read_text())
    assert len(file["sha256"]["0"]["test"]) == 64


def test_an_interrupted_run_gives_the_same_numbers(
    run_in: Callable[[Path], redx.Run], run: redx.Run, tmp_path: Path
) -> None:
    shutil.copytree(run.folder, tmp_path / "short")
    (tmp_path / "short" / "seed-0" / "stages.json").write_text('{"base": 1.0}')
    again = run_in(tmp_path / "short")
    assert without_times(again.summary) == without_times(run.summary)
    for path in run.folder.rglob("*.safetensors"):
        assert (again.folder / path.relative_to(run.folder)).read_bytes() == path.read_bytes()


def test_the_model_of_a_run_reads_images(run: redx.Run) -> None:
    model = redx.load(run.folder)
    images = get_task("mnist").load(configure("mnist", "quick"), 0).test.inputs[:20]
    explanations = model.explain(images)
    assert [explanation.answer for explanation in explanations] == model.predict(images)
    assert set(explanations[0].weights) == {"0-1", "2-3", "4-5", "6-7", "8-9"}
    with pytest.raises(redx.RedxError, match="28"):
        model.predict(torch.zeros(3, 7, 7))
