"""A copied run works without the data that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

import redx
from helpers.commands import Ask
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import run_on_clouds
from helpers.serving import asking
from redx.runs import editing
from redx.runs.diff import diff_experts


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


def test_the_page_of_a_copied_run_compares_experts(alone: Path) -> None:
    name = redx.load(alone).experts.names[0]
    with asking(alone) as client:
        answer = client.post("/api/diff", json={"without": [name]})
    assert answer.status_code == 200, answer.text
    assert name not in answer.json()["experts"]["after"]


def test_certify_says_which_seeds_it_shows(toy: redx.Run, clouds: redx.Run, ask: Ask) -> None:
    def title(*words: object) -> str:
        return " ".join(ask("certify", *words)[1].split())

    assert "mean of the seeds 0, 1" in title(toy.folder)
    assert "seed 1 " in title(toy.folder, "--seed", 1)
    assert "seed 0 " in title(clouds.folder)


def test_experts_train_counts_its_examples(clouds_copy: Path, tmp_path: Path) -> None:
    arrays = draw_clouds(450, seed=3)
    data = write_arrays(tmp_path / "own.npz", x=arrays["x"], y=arrays["y"])
    info = editing.train_expert(clouds_copy, "new", data, tmp_path / "new").info
    assert (info["training"]["examples"], info["metrics"]["examples"]) == (405, 45)
