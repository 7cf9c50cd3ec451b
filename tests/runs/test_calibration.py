"""`calibrate_run`: another risk for a finished run, as a transaction, and the figures on the test split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redx
from redx.composition.evaluation import certify
from redx.composition.rules import get_rule
from redx.config import BankId
from redx.errors import RedxError
from redx.runs.calibration import calibrate_run, risk_figures
from redx.runs.diff import diff_experts
from redx.runs.editing import add_expert, remove_expert
from redx.runs.parts import read_parts

RISK = BankId("residual", "risk")


def test_another_risk_changes_cutoffs_and_nothing_else(clouds_copy: Path) -> None:
    before = read_parts(clouds_copy, 0)
    result = calibrate_run(clouds_copy, 0.0)[0]
    after = read_parts(clouds_copy, 0)
    assert result["risk"] == 0.0
    assert result == risk_figures(clouds_copy)
    for bank_id, parts in before.banks.items():
        same = after.banks[bank_id].tensors()
        assert all(torch.equal(tensor, same[name]) for name, tensor in parts.tensors().items())
    cutoffs = after.banks[RISK].cutoffs
    assert cutoffs is not None
    assert cutoffs != before.banks[RISK].cutoffs
    assert redx.load(clouds_copy).current_control().cutoffs == cutoffs


def test_the_model_answers_as_the_parts_say_after_calibration(clouds_copy: Path) -> None:
    for risk in (0.1, 1.0):
        figures = calibrate_run(clouds_copy, risk)[0]
        parts = read_parts(clouds_copy, 0).banks[RISK]
        right = certify(get_rule("red"), parts).predicted == parts.labels
        assert figures["clean"] == pytest.approx(float(right.double().mean()))
        assert figures["worst"] <= figures["clean"]
        assert figures["base"] - figures["worst"] <= figures["harm"] + 1e-9
        assert figures["low"] <= figures["harm"] <= figures["high"]


def test_a_risk_that_is_not_supported_is_refused_and_nothing_changes(clouds_copy: Path) -> None:
    before = (clouds_copy / "seed-0" / "risk.json").read_bytes()
    with pytest.raises(RedxError, match="cannot be promised with"):
        calibrate_run(clouds_copy, 1e-6)
    with pytest.raises(RedxError, match="holds no seed 7"):
        calibrate_run(clouds_copy, 0.5, seed=7)
    assert (clouds_copy / "seed-0" / "risk.json").read_bytes() == before


@pytest.mark.usefixtures("unverified")
def test_a_run_without_risk_control_says_so(clouds_copy: Path) -> None:
    (clouds_copy / "seed-0" / "risk.json").unlink()
    with pytest.raises(RedxError, match="no experts under risk control"):
        calibrate_run(clouds_copy, 0.5)


def test_experts_that_come_and_go_are_calibrated_anew(clouds_copy: Path) -> None:
    calibrate_run(clouds_copy, 0.0)
    first = json.loads((clouds_copy / "seed-0" / "risk.json").read_text())
    thresholds = (clouds_copy / "seed-0" / "thresholds.safetensors").read_bytes()
    now = risk_figures(clouds_copy)
    assert diff_experts(clouds_copy, removed=["1"])["now"] == now
    kept = remove_expert(clouds_copy, "1")
    without = json.loads((clouds_copy / "seed-0" / "risk.json").read_text())
    assert without["experts"] == ["0", "2", "3"]
    assert (without["risk"], without["cutoffs"]) == (0.0, first["cutoffs"])
    assert now is not None
    assert now["clean"] == now["base"]
    add_expert(clouds_copy, kept)
    assert json.loads((clouds_copy / "seed-0" / "risk.json").read_text()) == first
    assert (clouds_copy / "seed-0" / "thresholds.safetensors").read_bytes() == thresholds


def test_the_summary_tells_promise_and_harm(clouds: redx.Run) -> None:
    figures = risk_figures(clouds.folder)
    assert figures is not None
    for name in ("red", "red/risk"):
        risk = clouds.summary["rules"][name]["risk"]
        assert risk["risk"] == figures["risk"]
        assert risk["harm"] == {"mean": figures["harm"], "low": figures["low"], "high": figures["high"]}
    assert "risk" not in clouds.summary["rules"]["red/anchored"]
    assert "risk" not in clouds.summary["rules"]["base"]
