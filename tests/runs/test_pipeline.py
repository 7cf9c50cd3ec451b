"""A run folder keeps its contract, replays, resumes and is loaded as a model."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import changes

import redx
from redx.composition.noise import NOISES
from redx.composition.rules import RULES
from redx.runs import folder
from redx.runs.presets import configure
from redx.tasks import get_preset, tasks


def forget_times(summary: dict) -> dict:
    return {name: value for name, value in summary.items() if name != "cost"}


def test_summary_follows_schema_1(toy: redx.Run) -> None:
    summary = json.loads((toy.folder / "summary.json").read_text())
    assert summary["schema"] == 1
    assert summary["seeds"] == [0, 1]
    assert summary["data"] == {"train": 2000, "validation": 2000, "test": 2000, "split": "random", "seen_in_train": 1.0}
    assert {name.split("/")[0] for name in summary["rules"]} == set(RULES)
    for entry in summary["rules"].values():
        assert entry["accuracy"]["low"] <= entry["accuracy"]["mean"] <= entry["accuracy"]["high"]
        assert entry["certified"]["0"] == pytest.approx(entry["accuracy"]["mean"])
        assert set(entry["noise"]) == set(NOISES)
        for curve in entry["noise"].values():
            assert curve["0"] == pytest.approx(entry["accuracy"]["mean"])
        assert entry["worst_domain"] <= min(entry["per_domain"].values()) + 1e-12
        assert set(entry["per_domain"]) == {"1-20", "21-40", "41-60", "61-80", "81-100"}
    assert summary["rules"]["base"]["harm"] == summary["rules"]["base"]["help"] == 0
    assert summary["rules"]["red"] == summary["rules"]["red/residual"]
    assert summary["cost"]["seconds"]["total"] > 0


def test_results_are_long_and_the_summary_is_their_mean(toy: redx.Run) -> None:
    rows = [json.loads(line) for line in (toy.folder / "results.jsonl").read_text().splitlines()]
    columns = {"task", "rule", "bank", "noise", "level", "seed", "domain", "metric", "value"}
    assert all(set(row) == columns for row in rows)
    wanted = {"rule": "moe", "bank": "mlp", "noise": "swap", "level": 0.5, "domain": "all", "metric": "accuracy"}
    found = [row["value"] for row in rows if wanted.items() <= row.items()]
    assert len(found) == 2
    assert toy.summary["rules"]["moe/mlp"]["noise"]["swap"]["0.5"] == pytest.approx(sum(found) / 2)


def test_the_same_command_again_changes_nothing(toy: redx.Run) -> None:
    before = {path: path.read_bytes() for path in toy.folder.rglob("*.safetensors")}
    again = redx.run("toy", "quick", seeds=[0, 1], out=toy.folder, **changes())
    assert forget_times(again.summary) == forget_times(toy.summary)
    assert before == {path: path.read_bytes() for path in toy.folder.rglob("*.safetensors")}


@pytest.mark.parametrize("gone", ["base", "features", "experts", "pooled", "router", "parts"])
def test_a_run_cut_short_at_any_stage_ends_the_same(toy: redx.Run, tmp_path: Path, gone: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(toy.folder, copy)
    stages = json.loads((copy / "seed-0" / "stages.json").read_text())
    names = list(stages)
    left = {name: stages[name] for name in names[: names.index(gone)]}
    (copy / "seed-0" / "stages.json").write_text(json.dumps(left))
    again = redx.run("toy", "quick", seeds=[0, 1], out=copy, **changes())
    assert forget_times(again.summary) == forget_times(toy.summary)
    for path in toy.folder.rglob("*.safetensors"):
        assert path.read_bytes() == (copy / path.relative_to(toy.folder)).read_bytes()


def test_config_replays_the_run(toy: redx.Run) -> None:
    assert folder.read_config(toy.folder) == configure("toy", "quick", seeds=[0, 1], **changes())


def test_seeds_differ_and_do_not_depend_on_company(toy: redx.Run, tmp_path: Path) -> None:
    alone = redx.run("toy", "quick", seeds=[1], out=tmp_path / "alone", **changes())
    mlp = "seed-1/parts/standalone-mlp.safetensors"
    assert (alone.folder / mlp).read_bytes() == (toy.folder / mlp).read_bytes()
    assert (alone.folder / mlp).read_bytes() != (toy.folder / mlp.replace("seed-1", "seed-0")).read_bytes()


def test_an_expert_does_not_depend_on_the_other_banks(toy: redx.Run, tmp_path: Path) -> None:
    alone = redx.run("toy-mlp", "quick", seeds=[0], out=tmp_path / "mlp", **changes("toy-mlp"))
    file = "seed-0/experts/41-60/expert.safetensors"
    together, apart = load_file(toy.folder / file), load_file(alone.folder / file)
    assert apart.keys() == {name for name in together if name.startswith("standalone/mlp.")}
    assert all(torch.equal(apart[name], together[name]) for name in apart)


def test_model_answers_and_explains(toy: redx.Run) -> None:
    model = redx.load(toy.folder)
    pairs = [[12, 5], [90, 99]]
    assert model.predict(pairs) == [told["answer"] for told in model.explain(pairs)]
    told = model.explain(pairs)[0]
    assert math.isclose(sum(told["weights"].values()), 1, rel_tol=1e-5)
    assert 0 <= told["radius"] <= 1
    with model.using(rule="base"):
        assert model.predict(pairs) == [17, 189]


def test_using_is_undone(toy: redx.Run) -> None:
    model = redx.load(toy.folder)
    before = model.parts([[12, 5]])
    with model.using(rule="sum", without=["1-20", "81-100"]):
        assert model.parts([[12, 5]]).experts == 3
    assert model.parts([[12, 5]]).experts == 5
    assert torch.equal(model.parts([[12, 5]]).residuals, before.residuals)
    with pytest.raises(redx.RedxError, match="no expert 'x'"), model.using(without=["x"]):
        pass
    with pytest.raises(redx.RedxError, match="no rule 'x'"), model.using(rule="x"):
        pass
    with pytest.raises(redx.RedxError, match="no seed 7"):
        redx.load(toy.folder, seed=7)


@pytest.mark.parametrize("name", list(tasks()))
def test_every_task_has_presets_that_name_it(name: str) -> None:
    for key in tasks()[name].presets:
        config = get_preset(name, key)
        assert (config.task, config.preset) == (name, key)
        assert {*map("/".join, config.main.items())} - {"averaged/linear", "averaged/mlp"} <= set(config.banks)


@pytest.mark.parametrize("name", ["toy-linear", "toy-mlp", "toy-residual"])
def test_each_toy_runs_alone(name: str, tmp_path: Path) -> None:
    done = redx.run(name, "quick", out=tmp_path / name, **changes(name))
    assert done.report.exists()
    assert set(done.summary["rules"]) >= {"base", "red" if name == "toy-residual" else "moe"}
    assert len(redx.load(done.folder).predict([[1, 2]])) == 1
