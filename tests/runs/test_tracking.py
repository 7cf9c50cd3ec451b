"""Tracking writes curves that tensorboard reads, and changes neither figures nor resumption."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask
from helpers.runs import without_times
from redx.errors import RedxError
from redx.runs.tracking import check_tracker

SETTINGS = {"study": "none", "epochs": {"base": 3, "experts": 2, "router": 2}}


def curves(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the curves under a folder as tensorboard reads them, by run and tag."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    loaded = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    return {
        run: {tag: [(event.step, event.value) for event in loaded.Scalars(run, tag)] for tag in tags["scalars"]}
        for run, tags in loaded.Runs().items()
    }


@pytest.fixture(scope="module")
def tracked(clouds: redx.Run, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """The run on clouds once more, with curves."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    file = str(clouds.folder.with_suffix(".npz"))
    return redx.run("features", "quick", out=folder, file=file, track="tensorboard", **SETTINGS)


def test_a_tracked_run_gives_the_same_bits(clouds: redx.Run, tracked: redx.Run) -> None:
    assert without_times(tracked.summary) == without_times(clouds.summary)
    paths = [path.relative_to(clouds.folder) for path in clouds.folder.rglob("*.safetensors")]
    assert paths
    for path in paths:
        assert (clouds.folder / path).read_bytes() == (tracked.folder / path).read_bytes(), path
    assert (clouds.folder / "config.json").read_bytes() == (tracked.folder / "config.json").read_bytes()


def test_every_stage_and_expert_has_its_curves(tracked: redx.Run) -> None:
    runs = curves(tracked.folder)
    base = runs["track/seed-0/base"]
    assert [step for step, _ in base["base/train loss"]] == [1, 2, 3]
    assert {"base/learning rate", "base/validation score"} <= set(base)
    assert "track/seed-0/router" in runs
    for expert in redx.load(tracked.folder).experts.names:
        expert_curves = runs[f"track/seed-0/residual-anchored/{expert}"]
        assert [step for step, _ in expert_curves["residual-anchored/train loss"]] == [1, 2]


def test_a_stage_that_is_repeated_replaces_its_curves(clouds: redx.Run, tracked: redx.Run) -> None:
    before = curves(tracked.folder)
    file = tracked.folder / "seed-0" / "stages.json"
    stages = json.loads(file.read_text())
    file.write_text(json.dumps({name: stages[name] for name in list(stages)[: list(stages).index("router")]}))
    again = redx.run(
        "features",
        "quick",
        out=tracked.folder,
        file=str(clouds.folder.with_suffix(".npz")),
        track="tensorboard",
        **SETTINGS,
    )
    assert without_times(again.summary) == without_times(clouds.summary)
    assert curves(tracked.folder) == before


def test_mistakes_get_one_sentence(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _, err = ask("run", "toy", "--preset", "quick", "--track", "abacus", "--out", tmp_path / "run")
    assert code == 2
    assert "There is no tracker 'abacus'; choose --track tensorboard." in err
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RedxError, match=r"needs tensorboard; install with: pip install 'redx\[track\]'"):
        check_tracker("tensorboard")
