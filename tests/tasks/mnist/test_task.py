"""MNIST: honest splits, experts that see only their own, cut-offs that keep their promise, features made once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import redx
from redx.data.dataset import Data, Split
from redx.io import feature_cache, hashing
from redx.models.banks import LowRankBank, initialise_bank, run_bank
from redx.models.base import Base
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task
from redx.tasks.mnist import download
from redx.training import datasets, loop
from redx.training.banks import train_bank
from redx.training.datasets import ExpertData, SharedData

QUICK = {"limit": 3000, "epochs": {"base": 3, "experts": 2, "router": 2}}


@pytest.fixture(scope="session")
def data() -> Data:
    return get_task("mnist").load(configure("mnist", "quick"), 0)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], redx.Run]:
    """Runs on few real images, through all stages, with a cache of their own for features."""
    folder, cache = download.mnist_folder(), tmp_path_factory.mktemp("cache")

    def run(out: Path) -> redx.Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REDX_CACHE", str(cache))
            return redx.run("mnist", "quick", out=out, data_dir=str(folder), integrate=True, **QUICK)

    return run


@pytest.fixture(scope="session")
def run(quick: Callable[[Path], redx.Run], tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    return quick(tmp_path_factory.mktemp("mnist") / "run")


def test_the_splits_are_what_they_say(data: Data) -> None:
    assert [len(split) for split in (data.train, data.validation, data.test)] == [54_000, 6_000, 10_000]
    for split in (data.train, data.validation):
        shares = torch.bincount(split.domains).double() / len(split)
        whole = torch.bincount(torch.cat([data.train.domains, data.validation.domains])).double() / 60_000
        assert torch.allclose(shares, whole, atol=2e-4)
    again, other = (get_task("mnist").load(configure("mnist", "quick"), seed) for seed in (0, 1))
    assert again.train.digest() == data.train.digest()
    assert other.train.digest() != data.train.digest()
    assert other.test.digest() == data.test.digest()


def test_shared_subset_is_balanced_and_calibration_is_apart(data: Data) -> None:
    rows = datasets.shared_rows(data, 0.1, 0)
    counts = torch.bincount(data.train.labels[rows]).double()
    assert torch.allclose(counts / torch.bincount(data.train.labels), torch.full((10,), 0.1).double(), atol=1e-3)
    choose, calibrate = datasets.split_validation(data, 2 / 3, 0)
    assert len(choose) + len(calibrate) == 6_000
    assert not set(choose.tolist()) & set(calibrate.tolist())


def features_of(count: int, seed: int = 0) -> Split:
    """Made-up features of ten classes in five domains."""
    draw = generator(seed, "features")
    labels = torch.arange(count) % 10
    centres = torch.randn(10, 16, generator=generator(0, "centres"))
    return Split(centres[labels] + torch.randn(count, 16, generator=draw), labels, labels // 2)


@pytest.fixture
def base() -> Base:
    weight = torch.randn(16, 10, generator=generator(0, "classifier"))
    return Base(torch.nn.Identity(), weight, torch.zeros(10), torch.zeros(16), torch.ones(16))


def taught(train: Split) -> list[ExpertData]:
    return datasets.expert_datasets(
        "abcde", train, SharedData(features_of(200, 1), features_of(100, 3)), features_of(100, 2)
    )


def test_a_lesson_holds_nothing_of_another_domain() -> None:
    for index, lesson in enumerate(taught(features_of(400))):
        assert set(lesson.own.domains.tolist()) == {index}
        assert set(lesson.check.domains.tolist()) == {index}
        assert index not in lesson.anchors.domains.tolist()
        assert index not in lesson.calibration.domains.tolist()


@pytest.mark.parametrize("key", ["residual/plain", "residual/anchored", "standalone/plain", "standalone/anchored"])
def test_training_one_expert_leaves_the_others_alone(key: str, base: Base) -> None:
    settings = configure("mnist", "quick").banks[key]
    train = features_of(400)
    moved = train.inputs.clone()
    moved[train.domains == 2] += 1
    banks = [
        train_bank(key, settings, taught(split), base, 0, 1.0)
        for split in (train, Split(moved, train.labels, train.domains))
    ]
    for one, other in zip(*(bank.parameters() for bank in banks), strict=True):
        same = [torch.equal(one[k], other[k]) for k in range(5)]
        assert same == [True, True, False, True, True]


def test_an_untrained_correction_is_exactly_nothing(base: Base) -> None:
    bank = LowRankBank(5, 16, 4, base.weight)
    initialise_bank(bank, [generator(0, k) for k in range(5)])
    assert bank.down.any()
    assert torch.equal(run_bank(bank, features_of(20).inputs), torch.zeros(20, 5, 10))


def test_dropout_hides_its_share_and_each_learner_draws_alone() -> None:
    x = torch.ones(2, 400, 50)
    hidden = loop.dropout(x, 0.3, [generator(0, "a"), generator(0, "b")])
    assert abs(float((hidden == 0).double().mean()) - 0.3) < 0.01
    assert abs(float(hidden.mean()) - 1) < 0.02
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[1:], loop.dropout(x[1:], 0.3, [generator(0, "b")]))
    assert loop.dropout(x, 0.0, []) is x


@pytest.mark.parametrize("anchor", ["truth", "size", "margin"])
def test_anchors_keep_an_expert_quiet_outside_its_domain(anchor: str, base: Base) -> None:
    train, test = features_of(400), features_of(300, 3)
    plain = configure("mnist", "quick").banks["residual/plain"]
    held = plain.model_copy(update={"anchor": anchor, "anchor_weight": 5.0})
    loss = []
    for settings in (plain, held):
        settings = settings.model_copy(update={"training": settings.training.model_copy(update={"epochs": 40})})
        bank = train_bank("residual/x", settings, taught(train), base, 0, 1.0)
        start, said = base.classify(test.inputs), run_bank(bank, test.inputs)  # (N, C), (N, K, C)
        outside = (test.domains[:, None] != torch.arange(5)) & (start.argmax(-1) == test.labels)[:, None]
        broken = (start[:, None] + said).argmax(-1) != test.labels[:, None]
        loss.append(float(broken[outside].double().mean()))
    assert loss[1] < loss[0] / 2


def test_a_run_on_real_images_keeps_its_promises(run: redx.Run) -> None:
    rules = run.summary["rules"]
    assert {
        "red/plain",
        "red/anchored",
        "red/owned",
        "moe/plain",
        "moe/anchored",
        "global/linear",
        "global/mlp",
    } <= set(rules)
    assert rules["red"] == rules["red/owned"]
    assert rules["red/integrated"]["accuracy"] != rules["red/plain"]["accuracy"]
    assert rules["base"]["accuracy"]["mean"] > 0.5
    assert rules["red/owned"]["certified"]["1"] >= rules["red/plain"]["certified"]["1"]
    assert 0 <= rules["red"]["ece"] <= 1
    assert run.summary["data"]["seen_in_train"] == 0
    assert "price_of_safety" in run.summary["study"]
    file = json.loads((run.folder / "data.json").read_text())
    assert len(file["sha256"]["0"]["test"]) == 64


def test_a_run_cut_short_or_begun_again_ends_the_same(
    quick: Callable[[Path], redx.Run], run: redx.Run, tmp_path: Path
) -> None:
    shutil.copytree(run.folder, tmp_path / "short")
    (tmp_path / "short" / "seed-0" / "stages.json").write_text('{"base": 1.0}')
    for again in (quick(tmp_path / "short"), quick(tmp_path / "new")):
        assert {**again.summary, "cost": 0} == {**run.summary, "cost": 0}
        for path in run.folder.rglob("*.safetensors"):
            assert (again.folder / path.relative_to(run.folder)).read_bytes() == path.read_bytes()


def test_the_model_of_a_run_reads_images(run: redx.Run) -> None:
    model = redx.load(run.folder)
    images = get_task("mnist").load(configure("mnist", "quick"), 0).test.inputs[:20]
    told = model.explain(images)
    assert [each["answer"] for each in told] == model.predict(images)
    assert set(told[0]["weights"]) == {"0-1", "2-3", "4-5", "6-7", "8-9"}
    with pytest.raises(redx.RedxError, match="28"):
        model.predict(torch.zeros(3, 7, 7))


def test_features_are_made_once_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path))
    made = torch.randn(10, 3)
    calls = []

    def make() -> list[torch.Tensor]:
        calls.append(1)
        return list(made.split(4))

    for _ in range(2):
        assert torch.equal(feature_cache.cached_rows("x", 10, make), made)
    assert len(calls) == 1
    path = tmp_path / "embeddings" / "x.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(redx.RedxError, match="truncated"):
        feature_cache.cached_rows("x", 10, make)

    def fail() -> list[torch.Tensor]:
        raise OSError(28, "No space left on device")

    with pytest.raises(redx.RedxError, match="free space"):
        feature_cache.cached_rows("y", 10, fail)
    assert [found.name for found in path.parent.iterdir()] == ["x.npy"]


def test_other_weights_or_data_have_another_name() -> None:
    one = {"w": torch.zeros(3)}
    assert hashing.hash_tensors(one, "a") == hashing.hash_tensors({"w": torch.zeros(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors({"w": torch.ones(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors(one, "b")
