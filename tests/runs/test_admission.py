"""An expert from outside is measured before a run takes it, and an owner who cheats is refused or harmless."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import redx
from helpers.commands import Ask, succeeded
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import contents
from helpers.tampering import reseal
from redx.composition.parts import Parts
from redx.composition.risk import RiskControl, harm_figures
from redx.data.dataset import Split
from redx.data.rows import hash_rows
from redx.errors import RedxError, RefusedError
from redx.models.base import Base
from redx.models.ridge_head import RidgeHead
from redx.runs import editing, folder
from redx.runs.admission import HASHES, check_harm
from redx.runs.diff import diff_experts
from redx.runs.folder import read_config
from redx.runs.kit import kit_of_run
from redx.seeding import generator
from redx.tasks import get_task
from redx.training import datasets
from redx.training.datasets import concatenate, read_features, split_validation

RISK, DIVISIONS, HELD = 0.05, 50, 150


def raw_rows(run: Path, part: str, tmp_path: Path, count: int = 20) -> Path:
    """Write examples of a run's own data, with their labels, as an owner who took them would have them."""
    config = read_config(run)
    data = get_task(config.task).load(config, 0)
    choices, calibration = split_validation(data, config.ownership.calibration, 0)
    split = {
        "calibration": data.validation.only(calibration),
        "choice": data.validation.only(choices),
        "test": data.test,
    }[part]
    labels = numpy.array(data.classes)[split.labels.numpy()]
    return write_arrays(tmp_path / f"{part}.npz", x=split.inputs[:count].numpy(), y=labels[:count])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with enough held-out examples to divide them at random."""
    home = tmp_path_factory.mktemp("target")
    file = write_arrays(home / "clouds.npz", **draw_clouds(2400))
    epochs = {"base": 3, "experts": 1, "router": 1}
    return redx.run("features", "quick", out=home / "run", file=str(file), study="none", epochs=epochs).folder


@pytest.fixture
def target_copy(target: Path, tmp_path: Path) -> Path:
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(target, tmp_path / "run"))


# --- rows that an expert must not know


def test_an_expert_that_was_trained_on_calibration_rows_is_refused(target_copy: Path, tmp_path: Path, ask: Ask) -> None:
    data = raw_rows(target_copy, "calibration", tmp_path)
    for name, more in (("marked", ()), ("unmarked", ("--no-row-hashes",))):
        words = ("--domain", name, "--data", data, "--out", tmp_path / name, *more)
        succeeded(ask("experts", "train", target_copy, *words))
    before = contents(target_copy)
    code, _, error = ask("experts", "add", target_copy, tmp_path / "marked")
    assert (code, contents(target_copy)) == (1, before)
    assert "was trained on 20 calibration examples of this run" in " ".join(error.split())
    code, _, error = ask("experts", "replace", target_copy, "0", tmp_path / "marked")
    assert (code, contents(target_copy)) == (1, before)
    code, _, error = ask("experts", "add", target_copy, tmp_path / "marked", "--force")
    assert code == 0
    assert "warning: taken by force: Expert 'marked' was trained on 20 calibration" in " ".join(error.split())
    assert HASHES not in load_file(tmp_path / "unmarked" / "expert.safetensors")


@pytest.mark.parametrize("part", ["choice", "test"])
def test_choice_and_test_rows_are_named(target_copy: Path, tmp_path: Path, part: str) -> None:
    data, told = raw_rows(target_copy, part, tmp_path), list[str]()
    editing.train_expert(target_copy, "new", data, tmp_path / "new")
    editing.add_expert(target_copy, tmp_path / "new", force=True, tell=told.append)
    assert any(f"new was trained on 20 {part} examples" in note for note in told)


def test_rows_of_the_owner_alone_pass(clouds_copy: Path, tmp_path: Path) -> None:
    arrays, told = draw_clouds(100, seed=9), list[str]()
    data = write_arrays(tmp_path / "own.npz", x=arrays["x"], y=arrays["y"])
    editing.train_expert(clouds_copy, "new", data, tmp_path / "new")
    editing.add_expert(clouds_copy, tmp_path / "new", tell=told.append)
    assert not told


def test_hashes_ignore_the_last_bits_and_depend_on_the_base() -> None:
    h = torch.randn(500, 64, generator=generator(0, "rows"))
    noisy = h + 1e-6 * torch.randn(h.shape, generator=generator(0, "noise"))
    hashes = hash_rows(h, "a")
    assert (hashes == hash_rows(noisy, "a")).double().mean() > 0.99
    assert len(hashes.unique()) == 500
    assert not torch.isin(hash_rows(h, "b"), hashes).any()


def test_unusable_hashes_are_refused(clouds_copy: Path, tmp_path: Path) -> None:
    arrays = draw_clouds(100, seed=9)
    data = write_arrays(tmp_path / "own.npz", x=arrays["x"], y=arrays["y"])
    editing.train_expert(clouds_copy, "new", data, tmp_path / "new")
    file = tmp_path / "new" / "expert.safetensors"
    save_file(load_file(file) | {HASHES: torch.zeros(2, 2)}, file)
    reseal(file.parent)
    with pytest.raises(RedxError, match="unusable hashes of its rows"):
        editing.add_expert(clouds_copy, tmp_path / "new")


# --- choosing


def test_diff_shows_figures_of_choice_examples_that_calibration_and_test_do_not_change(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = diff_experts(target, removed=["0"])
    now, choice = change.pop("now"), change["choice"]
    assert now["calibration"] > 20
    assert choice["before"]["examples"] == choice["after"]["examples"] > 20
    assert choice["before"]["base"] == choice["after"]["base"]
    read = folder.read_feature_split

    def other_labels(path: Path, part: str) -> Split:
        assert part != "test"
        split = read(path, part)
        labels, (_, held) = split.labels.clone(), split_validation(split, share, 0)
        labels[held] = 1 - labels[held]
        return Split(split.inputs, labels, split.domains)

    def untested(path: Path, part: str) -> Split:
        assert part != "test"
        return read(path, part)

    share = read_config(target).ownership.calibration
    monkeypatch.setattr(folder, "read_feature_split", other_labels)  # what calibration reads
    monkeypatch.setattr(datasets, "read_feature_split", untested)
    again = diff_experts(target, removed=["0"])
    again.pop("now")
    assert again == change


# --- harm on the test split


def base_of_run(run: Path, without: tuple[str, ...] = ()) -> RidgeHead:
    """Return the base of a run that some owners have left."""
    experts = redx.load(run).experts
    for name in without:
        experts.remove(name)
    assert experts.head is not None
    return experts.head


def test_an_expert_that_harms_the_test_split_is_refused(
    clouds_copy: Path, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner knows the calibration rows, which is simulated by rows on which nothing can be harmed."""
    arrays = draw_clouds(100, seed=9)
    wrong = numpy.where(arrays["y"] == "high", "low", "high")
    data = write_arrays(tmp_path / "x.npz", x=arrays["x"], y=wrong)
    editing.train_expert(clouds_copy, "bad", data, tmp_path / "bad", statistics=False)
    file = tmp_path / "bad" / "expert.safetensors"
    loud = {name: 1000 * value if name.startswith("residual") else value for name, value in load_file(file).items()}
    save_file(loud, file)
    reseal(file.parent)
    read = folder.read_feature_split

    def without_harm(path: Path, part: str) -> Split:
        split = read(path, part)
        labels, (_, held) = split.labels.clone(), split_validation(split, share, 0)
        labels[held] = 1 - current["base"](split.inputs[held]).argmax(-1)  # the base is always wrong
        return Split(split.inputs, labels, split.domains)

    share = read_config(clouds_copy).ownership.calibration
    whole, without_first = base_of_run(clouds_copy), base_of_run(clouds_copy, ("0",))
    current = {"base": whole}
    monkeypatch.setattr(folder, "read_feature_split", without_harm)
    before = contents(clouds_copy)
    cases = {("add", clouds_copy): whole, ("replace", clouds_copy, "0"): without_first}
    for words, current["base"] in cases.items():
        code, _, error = ask("experts", *words, tmp_path / "bad")
        assert (code, contents(clouds_copy)) == (1, before)
        assert "the worst router harms" in " ".join(error.split())
        assert len(error.strip().rstrip(".").split(". ")) == 1
    current["base"] = whole
    with pytest.raises(RefusedError):
        editing.add_expert(clouds_copy, tmp_path / "bad")
    code, _, error = ask("experts", "add", clouds_copy, tmp_path / "bad", "--force")
    assert code == 0
    assert "taken by force" in error
    assert "bad" in redx.load(clouds_copy).experts


# --- the attack


def attack(base: Base, rows: Split, known: Tensor) -> Parts:
    """Return the record of a malicious expert: silent where it knows an example, loud and wrong elsewhere.

    It remembers every known example, which is more than any network of that size could, and its confidence is the
    distance to the nearest one.
    """
    logits = base.classify(rows.inputs).detach()
    wrong = torch.nn.functional.one_hot(logits.argsort(-1)[:, 0], logits.shape[1])
    confidence = torch.cdist(rows.inputs, known).min(1).values
    parts = Parts(logits, 1e3 * wrong[:, None].float(), torch.zeros(len(rows), 1), rows.labels)
    return parts.with_confidences(confidence[:, None], None)


Division = tuple[RiskControl, Parts, Parts]


def divide(run: Path, known: Callable[[Split, Tensor], Tensor]) -> list[Division]:
    """Return an attack for random divisions of held-out rows: its calibration, and records of test and fresh rows.

    Parameters
    ----------
    run
        The run.
    known
        Returns the features that the attacker knows, from the held-out rows and those of them that calibrate.
    """
    features, base = read_features(run / "seed-0" / "features.safetensors"), kit_of_run(run).base
    pool, results = concatenate([features.validation, features.test]), []
    for number in range(DIVISIONS):
        order = torch.randperm(len(pool), generator=generator(number, "division"))
        parts = attack(base, pool, known(pool, order[:HELD]))
        control = RiskControl(RISK).calibrate(parts.only(order[:HELD]))
        test, fresh = order[HELD:].chunk(2)
        results.append((control, control.apply(parts.only(test)), control.apply(parts.only(fresh))))
    return results


def harm_after_adding(division: Division) -> float:
    """Return the share of fresh examples that the worst router harms after the expert was added, or was refused."""
    control, test, fresh = division
    try:
        check_harm("bad", control, test)
    except RefusedError:
        return 0.0
    return harm_figures("red", fresh)["harm"]


def test_an_owner_with_a_kit_cannot_break_the_promise(target: Path) -> None:
    anchors = kit_of_run(target).anchors.inputs  # all examples that a kit has
    harm = [harm_after_adding(division) for division in divide(target, lambda pool, held: anchors)]
    assert 0 < sum(harm) / DIVISIONS <= RISK


def test_an_owner_with_the_calibration_rows_would_break_it_and_is_refused(target: Path) -> None:
    divisions = divide(target, lambda pool, held: pool.inputs[held])
    assert sum(harm_figures("red", fresh)["harm"] for _, _, fresh in divisions) / DIVISIONS > 0.5
    assert [harm_after_adding(division) for division in divisions] == [0.0] * DIVISIONS
