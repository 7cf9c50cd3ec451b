"""A run: its summary and results, exact repetition, and resumption after any stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.runs import few_epochs, repeat_clouds, without_times
from redx.composition.noise import NOISES
from redx.composition.rules import RULES
from redx.composition.summary import SCHEMA
from redx.runs.folder import read_config
from redx.runs.plans import train_seed
from redx.runs.presets import configure
from redx.tasks import get_task


def check_summary(run: redx.Run) -> None:
    """Check what every summary has."""
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["schema"] == SCHEMA == 2
    for entry in summary["rules"].values():
        assert entry["accuracy"]["low"] <= entry["accuracy"]["mean"] <= entry["accuracy"]["high"]
        assert entry["certified"]["0"] == pytest.approx(entry["accuracy"]["mean"])
        assert set(entry["noise"]) == set(NOISES)
        for curve in entry["noise"].values():
            assert curve["0"] == pytest.approx(entry["accuracy"]["mean"])
        assert entry["worst_domain"] <= min(entry["per_domain"].values()) + 1e-12
        assert set(entry["per_domain"]) == set(summary["domains"])
    assert summary["rules"]["base"]["harm"] == summary["rules"]["base"]["help"] == 0
    assert summary["cost"]["seconds"]["total"] > 0


def check_same_files(one: Path, other: Path) -> None:
    """Check that all weights and parts of two runs are the same bytes."""
    paths = [path.relative_to(one) for path in one.rglob("*.safetensors")]
    assert paths
    for path in paths:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path


def test_the_summary_has_the_figures_of_every_rule(clouds: redx.Run) -> None:
    check_summary(clouds)
    assert clouds.summary["seeds"] == [0]
    assert clouds.summary["data"]["seen_in_train"] == 0
    assert clouds.summary["domains"] == ["0", "1", "2", "3"]
    assert clouds.summary["rules"]["red"] == clouds.summary["rules"]["red/risk"]


@pytest.mark.slow
def test_the_summary_of_several_seeds_and_all_rules_has_the_figures_of_every_rule(toy: redx.Run) -> None:
    check_summary(toy)
    summary = toy.summary
    assert summary["seeds"] == [0, 1]
    assert summary["data"] == {"train": 2000, "validation": 2000, "test": 2000, "split": "random", "seen_in_train": 1.0}
    assert {name.split("/")[0] for name in summary["rules"]} == set(RULES) - {"statistics"}
    assert summary["domains"] == ["1-20", "21-40", "41-60", "61-80", "81-100"]
    assert summary["rules"]["red"] == summary["rules"]["red/residual"]


@pytest.mark.slow
def test_results_are_long_and_the_summary_is_their_mean(toy: redx.Run) -> None:
    rows = [json.loads(line) for line in (toy.folder / "results.jsonl").read_text().splitlines()]
    columns = {"task", "rule", "bank", "noise", "level", "seed", "domain", "metric", "value"}
    assert all(set(row) == columns for row in rows)
    wanted = {"rule": "moe", "bank": "mlp", "noise": "swap", "level": 0.5, "domain": "all", "metric": "accuracy"}
    values = [row["value"] for row in rows if wanted.items() <= row.items()]
    assert len(values) == 2
    assert toy.summary["rules"]["moe/mlp"]["noise"]["swap"]["0.5"] == pytest.approx(sum(values) / 2)


def test_the_same_command_again_changes_nothing(clouds: redx.Run, clouds_copy: Path) -> None:
    again = repeat_clouds(clouds_copy, clouds)
    assert without_times(again.summary) == without_times(clouds.summary)
    check_same_files(clouds.folder, clouds_copy)


def forget_stages(folder: Path, first: str) -> None:
    """Let a run forget a stage and all that follow it."""
    stages = json.loads((folder / "seed-0" / "stages.json").read_text())
    names = list(stages)
    kept = {name: stages[name] for name in names[: names.index(first)]}
    (folder / "seed-0" / "stages.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("stage", ["base", "shared", "features", "experts", "pooled", "router", "parts"])
def test_a_run_interrupted_at_any_stage_gives_the_same_weights_and_parts(
    clouds: redx.Run, clouds_copy: Path, stage: str
) -> None:
    forget_stages(clouds_copy, stage)
    config = read_config(clouds_copy)
    seconds = train_seed(config, get_task("features").load(config, 0), 0, clouds_copy / "seed-0")
    assert set(seconds) == set(clouds.summary["cost"]["seconds"]) - {"evaluation", "study", "total"}
    check_same_files(clouds.folder, clouds_copy)


@pytest.mark.slow
def test_a_run_of_several_seeds_interrupted_in_the_first_gives_the_same_numbers(toy: redx.Run, toy_copy: Path) -> None:
    forget_stages(toy_copy, "experts")
    again = redx.run("toy", "quick", seeds=[0, 1], out=toy_copy, **few_epochs())
    assert without_times(again.summary) == without_times(toy.summary)
    check_same_files(toy.folder, toy_copy)


@pytest.mark.slow
def test_the_settings_of_a_run_are_read_as_they_were_given(toy: redx.Run) -> None:
    assert read_config(toy.folder) == configure("toy", "quick", seeds=[0, 1], **few_epochs())


@pytest.mark.slow
def test_a_seed_does_not_depend_on_the_other_seeds(toy: redx.Run, tmp_path: Path) -> None:
    alone = redx.run("toy", "quick", seeds=[1], out=tmp_path / "alone", **few_epochs())
    mlp = "seed-1/parts/standalone-mlp.safetensors"
    assert (alone.folder / mlp).read_bytes() == (toy.folder / mlp).read_bytes()
    assert (alone.folder / mlp).read_bytes() != (toy.folder / mlp.replace("seed-1", "seed-0")).read_bytes()


@pytest.mark.slow
def test_an_expert_does_not_depend_on_the_other_banks(toy: redx.Run, tmp_path: Path) -> None:
    alone = redx.run("toy-mlp", "quick", seeds=[0], out=tmp_path / "mlp", **few_epochs("toy-mlp"))
    file = "seed-0/experts/41-60/expert.safetensors"
    together, apart = load_file(toy.folder / file), load_file(alone.folder / file)
    assert apart.keys() == {name for name in together if name.startswith("standalone/mlp.")}
    assert all(torch.equal(apart[name], together[name]) for name in apart)
