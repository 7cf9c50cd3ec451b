"""`redx evaluate`, `redx certify` and `redx report` on a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redx
from helpers.checkpoints import alter_checkpoint
from helpers.commands import Ask, refused, succeeded


@pytest.mark.parametrize(
    ("run", "main", "other"),
    [("clouds", "risk", "moe/plain"), pytest.param("toy", "residual", "moe/mlp", marks=pytest.mark.slow)],
)
def test_other_rules_noise_and_shares_are_evaluated_without_training(
    ask: Ask, run: str, main: str, other: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(run).folder
    words = ("--rule", "red", "--noise", "swap", "--level", "0.3", "--epsilon", "0.2")
    rules = json.loads(succeeded(ask("evaluate", folder, *words, "--json", "--out", tmp_path / "rows.jsonl")))["rules"]
    assert {"red", f"red/{main}"} <= set(rules)
    assert all(name.split("/")[0] == "red" for name in rules)
    assert set(rules["red"]["certified"]) == {"0.2"}
    assert set(rules["red"]["noise"]["swap"]) == {"0.3"}
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) > 5
    assert other in succeeded(ask("evaluate", folder, "--rule", other))


@pytest.mark.parametrize("run", ["clouds", pytest.param("toy", marks=pytest.mark.slow)])
def test_certify_agrees_with_the_summary(ask: Ask, run: str, request: pytest.FixtureRequest) -> None:
    finished: redx.Run = request.getfixturevalue(run)
    certified = json.loads(succeeded(ask("certify", finished.folder, "--rule", "base", "--json")))["certified"]
    assert certified == finished.summary["rules"]["base"]["certified"]
    assert "breakable" in succeeded(ask("certify", finished.folder))


def test_one_run_and_several_are_reported(ask: Ask, clouds_copy: Path, clouds: redx.Run, tmp_path: Path) -> None:
    (clouds_copy / "report.html").unlink()
    out = succeeded(ask("report", clouds_copy))
    assert str(clouds_copy / "report.html") in out.replace("\n", "")
    assert (clouds_copy / "report.html").exists()
    succeeded(ask("report", clouds_copy, clouds.folder, "--out", tmp_path / "both.html"))
    assert (tmp_path / "both.html").stat().st_size > 10_000


@pytest.mark.usefixtures("unverified")
def test_parts_with_nan_and_truncated_parts_are_refused(ask: Ask, clouds_copy: Path) -> None:
    path = clouds_copy / "seed-0" / "parts" / "residual-risk.safetensors"
    alter_checkpoint(path, path, lambda tensors, _: tensors["residuals"][0, 0, 0].fill_(torch.nan))
    refused(ask("certify", clouds_copy), "Parts.residuals", "NaN")
    path.write_bytes(path.read_bytes()[:-40])
    refused(ask("certify", clouds_copy), path.name, "truncated")
