"""A run folder takes an expert with new classes, answers with them, and is as before when it is removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy
import pytest
import torch

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import write_arrays
from helpers.tampering import reseal
from redx.errors import RedxError
from redx.io.files import write_json
from redx.io.reading import read_json
from redx.runs import checkpoint
from redx.runs.editing import train_expert
from redx.runs.parts import read_parts, write_parts
from redx.serve.answers import answer_queries
from redx.serve.loaded import LoadedRun
from redx.serve.queries import Query

FAR = 25.0  # where the examples of new classes lie


def draw_new(count: int = 60, seed: int = 0) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return points of two new clouds with the labels `left` and `right`."""
    draw = numpy.random.default_rng(seed)
    right = numpy.arange(count) % 2
    x = draw.normal(size=(count, 6)) - FAR
    x[:, 0] += 12 * right
    return x, numpy.where(right == 1, "right", "left")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, clouds: redx.Run) -> Path:
    """The folder of an expert with two new classes, trained on the base of the run for more epochs than others."""
    folder = tmp_path_factory.mktemp("trained")
    away = Path(shutil.copytree(clouds.folder, folder / "away"))
    config = read_json(away / "config.json")
    for settings in (*config["banks"].values(), config["ownership"]["bank"]):
        settings["training"] |= {"epochs": 60, "lr": 0.01}
    write_json(away / "config.json", config)
    reseal(away)
    x, y = draw_new()
    data = write_arrays(folder / "new.npz", x=x, y=y)
    train_expert(away, "west", data, folder / "west", new_classes=True)
    return folder / "west"


def contents(run: Path) -> dict[str, bytes]:
    """Return every file of the seed but those of removed experts."""
    files = (path for path in (run / "seed-0").rglob("*") if path.is_file() and "removed" not in path.parts)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_adding_extends_and_removing_restores_every_file(clouds_copy: Path, trained: Path, ask: Ask) -> None:
    succeeded(ask("experts", "replace", clouds_copy, "0", clouds_copy / "seed-0" / "experts" / "0"))  # parts of today
    before = contents(clouds_copy)
    added = json.loads(succeeded(ask("experts", "add", clouds_copy, trained, "--json")))
    assert added["new_classes"] == ["left", "right"]
    stored = read_parts(clouds_copy, 0)
    assert stored.classes == ("high", "low", "left", "right")
    assert all(parts.base.shape[1] == 4 for parts in stored.banks.values())
    listed = {one["domain"]: one for one in json.loads(succeeded(ask("experts", "list", clouds_copy, "--json")))}
    assert listed["west"]["new_classes"] == ["left", "right"]
    succeeded(ask("experts", "list", clouds_copy))
    for command in ("evaluate", "certify", "report"):
        succeeded(ask(command, clouds_copy))
    succeeded(ask("experts", "remove", clouds_copy, "west"))
    after = contents(clouds_copy)
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"seed-0/manifest.json", "seed-0/state.json"}  # hashes of removed experts; counts the changes
    assert read_parts(clouds_copy, 0).classes == ("high", "low")


def test_a_model_answers_with_new_classes_and_keeps_them_when_saved(
    clouds_copy: Path, trained: Path, tmp_path: Path
) -> None:
    model, (x, y) = redx.load(clouds_copy), draw_new(40, 1)
    old = model.predict(x)
    assert set(old) <= {"high", "low"}
    with model.using("red/anchored", adding=[trained], router="keys"):
        assert sum(answer == label for answer, label in zip(model.predict(x), y, strict=True)) > 30
        explanation = next(one for one in model.explain(x) if one.answer in ("left", "right"))
        assert (explanation.range, explanation.base) == ("west", explanation.answer)  # the base learned its statistics
        saved = model.predict(x), [one.radius for one in model.explain(x)]
        model.save_pretrained(tmp_path / "saved")
    assert (model.predict(x), model.classes) == (old, ("high", "low"))
    loaded = redx.load(tmp_path / "saved")
    assert loaded.classes == ("high", "low", "left", "right")
    with loaded.using("red/anchored", router="keys"):
        assert (loaded.predict(x), [one.radius for one in loaded.explain(x)]) == saved


def test_a_diff_names_the_classes(clouds_copy: Path, trained: Path, ask: Ask) -> None:
    assert "classes added: left, right" in succeeded(ask("experts", "diff", clouds_copy, "--add", trained))
    succeeded(ask("experts", "add", clouds_copy, trained))
    comparison = json.loads(succeeded(ask("experts", "diff", clouds_copy, "--remove", "west", "--json")))
    assert comparison["classes"] == {"added": [], "removed": ["left", "right"]}
    assert {flip["after"] for flip in comparison["examples"]} <= {"high", "low"}


def test_the_router_is_retrained_with_examples_of_new_classes(clouds_copy: Path, trained: Path, ask: Ask) -> None:
    succeeded(ask("experts", "add", clouds_copy, trained))
    data = trained.parent / "new.npz"
    succeeded(ask("router", "train", clouds_copy, "--domain", "west", "--data", data))
    x, _ = draw_new(10, 2)
    assert {one.expert for one in redx.load(clouds_copy).explain(x)} == {"west"}
    assert set(json.loads(succeeded(ask("evaluate", clouds_copy, "--json")))["rules"]) >= {"red", "base"}


def test_a_checkpoint_holds_new_classes(clouds_copy: Path, trained: Path, ask: Ask, tmp_path: Path) -> None:
    succeeded(ask("experts", "add", clouds_copy, trained))
    data = trained.parent / "new.npz"
    succeeded(ask("router", "train", clouds_copy, "--domain", "west", "--data", data))
    exported = checkpoint.export_run(clouds_copy, tmp_path / "run.safetensors")
    assert json.loads(succeeded(ask("evaluate", exported.path, "--json")))


def test_labels_are_refused_in_one_sentence(clouds_copy: Path, trained: Path, tmp_path: Path, ask: Ask) -> None:
    x, y = draw_new(20)
    cases = {
        "or give --new-classes": (y, ()),
        "'High', which differs from 'high' only in case": (numpy.where(y == "left", "High", y), ("--new-classes",)),
        "1 examples of the new class 'rihgt'": (numpy.array(["rihgt", *y[1:]]), ("--new-classes",)),
        "'left', which differs from 'Left' only in case": (
            numpy.where(y == "left", "Left", "left"),
            ("--new-classes",),
        ),
    }
    for number, (message, (labels, words)) in enumerate(cases.items()):
        data = write_arrays(tmp_path / f"{number}.npz", x=x, y=labels)
        out = tmp_path / f"out{number}"
        own = ("--domain", "west", "--data", data, "--out", out)
        refused(ask("experts", "train", clouds_copy, *own, *words), message)
        assert not out.exists()
    copied = Path(shutil.copytree(trained, tmp_path / "copied", ignore=shutil.ignore_patterns("manifest.json")))
    write_json(copied / "expert.json", read_json(trained / "expert.json") | {"new_classes": ["left", "left"]})
    refused(ask("experts", "add", clouds_copy, copied), "does not describe an expert")


def test_an_expert_without_new_classes_says_nothing_of_them(clouds: redx.Run) -> None:
    for path in (clouds.folder / "seed-0" / "experts").glob("*/expert.json"):
        assert "new_classes" not in read_json(path)


@pytest.mark.usefixtures("unverified")
def test_stored_classes_must_fit_the_parts(clouds_copy: Path) -> None:
    stored = read_parts(clouds_copy, 0)
    shutil.rmtree(clouds_copy / "seed-0" / "parts")
    write_parts(clouds_copy / "seed-0" / "parts", stored.banks, stored.domains, 4, ("high", "low", "left"))
    with pytest.raises(RedxError, match="does not hold parts"):
        read_parts(clouds_copy, 0)
    assert torch.equal(stored.banks[next(iter(stored.banks))].true_labels().unique(), torch.tensor([0, 1]))


def test_a_served_run_answers_with_a_class_that_an_expert_brought(clouds_copy: Path, trained: Path, ask: Ask) -> None:
    assert ask("experts", "add", clouds_copy, trained)[0] == 0
    loaded = LoadedRun.read(clouds_copy, None)
    answers = answer_queries(loaded, [Query(draw_new()[0].tolist())])[0]
    new = [answer for answer in answers if answer["answer"] in ("left", "right")]
    assert new
    assert {answer["range"] for answer in new} == {loaded.model.experts.owner_of("left")}


def test_a_model_routes_by_keys_where_the_router_has_no_gate_for_an_added_expert(
    clouds_copy: Path, trained: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask("experts", "add", clouds_copy, trained)[0] == 0
    model = redx.load(clouds_copy)
    assert model.routing == "keys"
    assert "so keys routes until" in caplog.text
    with model.using("sum"):
        assert len(model.predict(draw_new()[0][:3])) == 3
