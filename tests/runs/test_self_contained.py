"""A copied run works without the data that it was made from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, succeeded
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import run_on_clouds
from helpers.serving import asking
from redx.errors import RedxError
from redx.runs import editing
from redx.runs.diff import diff_experts
from redx.runs.folder import read_config
from redx.tasks import TASKS


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A run in another place than where it was made, whose data file is gone."""
    file = write_arrays(tmp_path / "clouds.npz", **draw_clouds())
    run_on_clouds(tmp_path / "made", file)
    file.unlink()
    return (tmp_path / "made").rename(tmp_path / "elsewhere")


def test_experts_and_router_of_a_copied_run_are_changed(alone: Path) -> None:
    names = redx.load(alone).experts.names
    assert diff_experts(alone, removed=[names[0]])["experts"]["after"] == list(names[1:])
    kept = editing.remove_expert(alone, names[0])
    assert editing.add_expert(alone, kept).experts.names == names
    editing.replace_expert(alone, names[1], kept.parents[1] / "experts" / names[1])
    assert editing.retrain_router(alone, {})["experts"] == list(names)


def test_every_verb_that_asks_or_changes_a_copied_run(alone: Path, tmp_path: Path, ask: Ask) -> None:
    own = draw_clouds(40, seed=3)
    data = write_arrays(tmp_path / "own.npz", x=own["x"], y=own["y"])
    model = redx.load(alone)
    assert len(model.predict(own["x"][:2])) == 2
    for words in (
        ("evaluate", alone, "--rule", "red", "--noise", "swap"),
        ("certify", alone),
        ("calibrate", alone, "--risk", "0.3"),
        ("check", alone, "--min-accuracy", "0.01"),
        ("report", alone),
        ("experts", "list", alone),
        ("experts", "diff", alone, "--remove", model.experts.names[0]),
        ("experts", "train", alone, "--domain", "new", "--data", data, "--out", tmp_path / "new"),
        ("experts", "add", alone, tmp_path / "new"),
        ("router", "train", alone, "--domain", "new", "--data", data),
        ("experts", "remove", alone, "new"),
        ("export", alone, "--out", tmp_path / "full.safetensors"),
        ("shrink", tmp_path / "full.safetensors", "--trainable-last-n-layers", "0"),
        ("inspect", alone),
    ):
        succeeded(ask(*words))


def test_the_page_of_a_copied_run_compares_experts(alone: Path) -> None:
    name = redx.load(alone).experts.names[0]
    with asking(alone) as client:
        answer = client.post("/api/diff", json={"without": [name]})
        table = client.get("/api/examples").json()
    assert answer.status_code == 200, answer.text
    assert name not in answer.json()["experts"]["after"]
    assert table["problem"] is None
    assert len(table["rows"][0]["input"]) == draw_clouds()["x"].shape[1]


@pytest.mark.slow
def test_texts_of_choice_examples_are_shown_without_the_data(
    addition_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RedxError("There is no file of data.")

    monkeypatch.setitem(TASKS._entries, "addition", replace(TASKS["addition"], load=fail))
    flips = diff_experts(addition_copy, removed=redx.load(addition_copy).experts.names[:4], rule="moe")["examples"]
    assert flips
    assert all("plus" in flip["text"] for flip in flips)


def test_certify_says_which_seeds_it_shows(toy: redx.Run, clouds: redx.Run, ask: Ask) -> None:
    def title(*words: object) -> str:
        return " ".join(ask("certify", *words)[1].split())

    assert "mean of the seeds 0, 1" in title(toy.folder)
    assert "seed 1 " in title(toy.folder, "--seed", 1)
    assert "seed 0 " in title(clouds.folder)


def test_experts_train_counts_its_examples(clouds_copy: Path, tmp_path: Path, ask: Ask) -> None:
    arrays = draw_clouds(450, seed=3)
    data = write_arrays(tmp_path / "own.npz", x=arrays["x"], y=arrays["y"])
    words = ("experts", "train", clouds_copy, "--domain", "new", "--data", data, "--out")
    assert "on 405 examples" in succeeded(ask(*words, tmp_path / "new"))
    result = json.loads(succeeded(ask(*words, tmp_path / "again", "--json")))
    assert (result["examples"], result["held_out"]) == (405, 45)


def test_a_run_in_python_takes_the_names_of_the_command_line(clouds: redx.Run, tmp_path: Path) -> None:
    settings = read_config(clouds.folder).model_dump(mode="json")
    epochs = {"base": 3, "experts": 2, "router": 2}
    file = str(clouds.folder.with_suffix(".npz"))
    named = redx.run("features", "quick", out=tmp_path / "run", data=file, study="none", epochs=epochs)
    assert read_config(named.folder).model_dump(mode="json") == settings
