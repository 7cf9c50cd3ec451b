"""Results, summary and report follow a change of experts, router or risk; seeds of a folder add up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.commands import Ask, succeeded
from helpers.runs import few_epochs, without_times
from redx.composition.summary import read_summary
from redx.config import BankId
from redx.errors import RedxError
from redx.io.files import write_json
from redx.io.reading import read_json
from redx.runs import conclusion, editing
from redx.runs.calibration import calibrate_run
from redx.runs.folder import read_config
from redx.runs.parts import read_parts


def files_of(run: Path) -> dict[str, Any]:
    """Return what follows from the parts of a run, without times."""
    report = [line for line in (run / "report.md").read_text().splitlines() if " s " not in line]
    return {"summary": without_times(read_summary(run / "summary.json")), "report": report}


def test_summary_and_report_are_of_the_experts_that_a_run_has(clouds_copy: Path, ask: Ask) -> None:
    before, rows = files_of(clouds_copy), (clouds_copy / "results.jsonl").read_bytes()
    first, *rest = redx.load(clouds_copy).experts.names
    succeeded(ask("experts", "remove", clouds_copy, first))
    after = files_of(clouds_copy)
    assert list(after["summary"]["experts"]) == rest
    assert after["summary"]["modularity"]["experts"] == rest
    assert after["report"] != before["report"]
    evaluated = json.loads(succeeded(ask("evaluate", clouds_copy, "--json")))["rules"]
    shown = {name: rule["accuracy"] for name, rule in after["summary"]["rules"].items()}
    assert shown == {name: rule["accuracy"] for name, rule in evaluated.items()}
    kept = clouds_copy / "seed-0" / "removed" / first
    succeeded(ask("experts", "add", clouds_copy, kept))
    assert files_of(clouds_copy) == before
    assert (clouds_copy / "results.jsonl").read_bytes() == rows


def test_one_expert_alone_has_a_summary(clouds_copy: Path) -> None:
    *others, last = redx.load(clouds_copy).experts.names
    with editing.edit_run(clouds_copy) as change:
        for name in others:
            change.remove(name)
    assert list(read_summary(clouds_copy / "summary.json")["experts"]) == [last]


def test_the_summary_follows_the_router(clouds_copy: Path) -> None:
    editing.remove_expert(clouds_copy, redx.load(clouds_copy).experts.names[0])
    editing.retrain_router(clouds_copy, {})
    parts = read_parts(clouds_copy, 0).banks[BankId("residual", "risk")]
    right = float((parts.gates.argmax(-1) == parts.domains).double().mean())
    assert read_summary(clouds_copy / "summary.json")["router"] == {"accuracy": right}


def test_the_summary_follows_the_risk(clouds_copy: Path) -> None:
    calibrate_run(clouds_copy, risk=0.4)
    red = read_summary(clouds_copy / "summary.json")["rules"]["red"]
    assert red["risk"]["risk"] == 0.4
    assert "0.4" in (clouds_copy / "report.md").read_text()


def test_the_summary_prices_other_promises(clouds_copy: Path) -> None:
    def price() -> dict[str, Any]:
        return read_summary(clouds_copy / "summary.json")["rules"]["red"]["risk"]

    calibrate_run(clouds_copy, risk=0.06)
    before = price()
    for risk, accuracy in before["price"]["risks"].items():
        calibrate_run(clouds_copy, risk=float(risk))
        assert read_summary(clouds_copy / "summary.json")["rules"]["red"]["accuracy"]["mean"] == accuracy
    calibrate_run(clouds_copy, risk=0.06, budget="routing")
    after = price()
    red = read_summary(clouds_copy / "summary.json")["rules"]["red"]
    assert red["accuracy"]["mean"] == before["price"]["routing"]
    assert (before["budget"], after["budget"]) == ("harm", "routing")
    assert after["routing_harm"]["mean"] <= after["harm"]["mean"] == red["worst_harm"]


def test_a_change_of_one_seed_leaves_the_figures_of_the_others(toy_copy: Path) -> None:
    def rows(seed: int) -> list[str]:
        lines = (toy_copy / "results.jsonl").read_text().splitlines()
        return [line for line in lines if json.loads(line)["seed"] == seed]

    zero, one = rows(0), rows(1)
    first = redx.load(toy_copy).experts.names[0]
    editing.remove_expert(toy_copy, first, seed=1)
    assert (rows(0), rows(1) != one) == (zero, True)
    summary = read_summary(toy_copy / "summary.json")
    assert summary["seeds"] == [0, 1]
    assert first in summary["experts"]  # those of the first seed
    wanted = {"rule": "moe", "metric": "loss", "noise": "none", "domain": "all"}
    both = [row for row in map(json.loads, rows(0) + rows(1)) if wanted.items() <= row.items()]
    losses = [row["value"] for row in both if row["bank"] == both[0]["bank"]]
    assert len(set(losses)) == 2
    assert summary["rules"][f"moe/{both[0]['bank']}"]["loss"] == pytest.approx(sum(losses) / 2)


@pytest.mark.slow
def test_a_study_of_other_experts_is_left_out(addition_copy: Path) -> None:
    before = files_of(addition_copy)
    assert before["summary"]["study"]
    kept = editing.remove_expert(addition_copy, redx.load(addition_copy).experts.names[0])
    after = files_of(addition_copy)
    assert after["summary"]["study"] == {"left_out": conclusion.LEFT_OUT}
    assert any("left out, since they were made with other experts" in line for line in after["report"])
    editing.add_expert(addition_copy, kept)
    assert files_of(addition_copy) == before


def test_a_failed_summary_changes_nothing(clouds_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RedxError("The disk is full.")

    before = {path: path.read_bytes() for path in clouds_copy.rglob("*") if path.is_file() and path.name != "run.log"}
    monkeypatch.setattr(conclusion, "write_report", fail)
    with pytest.raises(RedxError, match="disk is full"):
        editing.remove_expert(clouds_copy, redx.load(clouds_copy).experts.names[0])
    after = {path: path.read_bytes() for path in clouds_copy.rglob("*") if path.is_file() and path.name != "run.log"}
    assert after == before


def run_toy(folder: Path, *seeds: int) -> redx.Run:
    return redx.run("toy", "quick", seeds, folder, **few_epochs(epochs=5))


@pytest.mark.slow
def test_seeds_of_a_folder_add_up(tmp_path: Path, ask: Ask) -> None:
    one = run_toy(tmp_path / "toy", 1)
    both = run_toy(tmp_path / "toy", 0)
    assert (one.summary["seeds"], both.summary["seeds"]) == ([1], [1, 0])
    again = run_toy(tmp_path / "toy", 1)
    assert without_times(again.summary) == without_times(both.summary)
    assert read_config(tmp_path / "toy").seeds == (1, 0)
    together = run_toy(tmp_path / "together", 1, 0)
    assert without_times(together.summary) == without_times(both.summary)
    certified = json.loads(succeeded(ask("certify", tmp_path / "toy", "--json")))
    assert certified["seeds"] == [1, 0]
    assert certified["certified"]["1"] == pytest.approx(both.summary["rules"]["red"]["certified"]["1"])


def test_a_seed_that_was_not_finished_is_not_counted(toy_copy: Path) -> None:
    stages = toy_copy / "seed-1" / "stages.json"
    write_json(stages, {name: value for name, value in read_json(stages).items() if name != "parts"})
    summary = redx.run("toy", "quick", [0], toy_copy, **few_epochs()).summary
    assert (summary["seeds"], read_config(toy_copy).seeds) == ([0], (0,))


def test_the_command_says_which_seeds_the_summary_covers(clouds: redx.Run, clouds_copy: Path, ask: Ask) -> None:
    shutil.copytree(clouds_copy / "seed-0", clouds_copy / "seed-7")
    data = clouds.folder.with_suffix(".npz")
    words: list[object] = ["run", "features", "--preset", "quick", "--data", data, "--study", "none"]
    words += ["--max-epochs-base", "3", "--max-epochs-experts", "2", "--max-epochs-router", "2", "--out", clouds_copy]
    out = succeeded(ask(*words))
    assert "The summary covers the seeds 0, 7 of the folder; only 0 was asked for." in out
    assert read_summary(clouds_copy / "summary.json")["seeds"] == [0, 7]
