"""The calibration of a model: files, other risks, and what happens when experts come and go."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import redx
from helpers.parts import draw_parts
from redx.composition.evaluation import certify, worst_harm
from redx.composition.risk import RiskControl, supported_risk
from redx.composition.rules import get_rule
from redx.config import BankId
from redx.errors import RedxError
from redx.model.model import Model
from redx.models.calibration import read_calibration, write_calibration

RISK = BankId("residual", "risk")


@pytest.fixture
def model(clouds: redx.Run) -> Model:
    return clouds.load()


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    parts = draw_parts(examples=200)
    calibration = RiskControl(0.05, 0.9, "all").calibrate(replace(parts, confidences=parts.gates))
    write_calibration(tmp_path / "risk.json", tmp_path / "thresholds.safetensors", calibration)
    again = read_calibration(tmp_path)
    assert again is not None
    assert (again.risk, again.confidence, again.score, again.examples) == (0.05, 0.9, "all", 200)
    assert again.cutoffs == calibration.cutoffs
    assert read_calibration(tmp_path / "nothing") is None
    content = json.loads((tmp_path / "risk.json").read_text())
    (tmp_path / "risk.json").write_text(json.dumps(content | {"calibration": 199}))
    with pytest.raises(RedxError, match="thresholds"):
        read_calibration(tmp_path)


def test_infinite_cutoffs_survive_the_file(tmp_path: Path) -> None:
    parts = draw_parts(examples=5)
    calibration = RiskControl(0.0).calibrate(replace(parts, confidences=parts.gates))
    assert calibration.cutoffs == (math.inf, math.inf)
    write_calibration(tmp_path / "risk.json", tmp_path / "thresholds.safetensors", calibration)
    again = read_calibration(tmp_path)
    assert again is not None
    assert again.cutoffs == calibration.cutoffs


def test_the_default_risk_is_the_smallest_that_is_supported(caplog: pytest.LogCaptureFixture) -> None:
    assert supported_risk(None, 500) == 0.01
    assert not caplog.records
    assert supported_risk(None, 49) == 0.02
    assert "49 calibration examples support no risk below 0.0200" in caplog.text
    assert supported_risk(0.0, 3) == 0.0
    with pytest.raises(RedxError, match=r"0\.001 cannot be promised with 500 calibration examples; choose at least"):
        supported_risk(0.001, 500)
    with pytest.raises(RedxError, match="between 0 and 1"):
        supported_risk(1.5, 500)


def test_a_smaller_risk_has_a_higher_cutoff_and_risk_one_has_none(model: Model) -> None:
    cutoffs = [model.calibrate(risk=risk).cutoffs.simplex for risk in (1.0, 0.3, 0.1, 0.0)]
    assert cutoffs[0] == -math.inf
    assert cutoffs == sorted(cutoffs)
    assert cutoffs[-1] == math.inf


def test_risk_zero_answers_as_the_base(model: Model) -> None:
    inputs = torch.randn(40, *model.info.shape, generator=torch.Generator().manual_seed(0))
    with model.using("base"):
        base = model.predict(inputs)
    model.calibrate(risk=0.0)
    assert model.predict(inputs) == base


def test_the_calibration_examples_keep_the_risk(model: Model) -> None:
    assert model.calibration_set is not None
    split = model.calibration_set()
    for risk in (0.1, 0.2, 0.4):
        model.calibrate(risk=risk)
        for name in ("red", "sum", "fixed"):
            rule = get_rule(name)
            parts = model.parts_of(split.inputs, RISK, split.labels, torch.full_like(split.labels, -1))
            harm = worst_harm(parts, certify(rule, parts, torch.zeros_like(parts.gates)))
            assert int(harm.sum()) + 1 <= risk * (len(split) + 1) + 1e-9


def test_removing_an_expert_calibrates_anew_and_adding_it_again_restores_the_cutoff(model: Model) -> None:
    before = model.current_control()
    removed = model.experts.remove("1")
    without = model.current_control()
    assert [expert.name for expert in without.experts] == ["0", "2", "3"]
    assert (without.risk, without.examples) == (before.risk, before.examples)
    model.experts.add(removed)
    again = model.current_control()
    assert again.cutoffs == before.cutoffs
    assert all(torch.equal(again.thresholds[region], values) for region, values in before.thresholds.items())


def test_experts_that_nothing_was_calibrated_on_are_refused(model: Model) -> None:
    model.calibration_set = None
    model.predict(torch.zeros(2, *model.info.shape))
    model.experts.remove("1")
    with pytest.raises(RedxError, match=r"model\.calibrate\(inputs, labels"):
        model.predict(torch.zeros(2, *model.info.shape))
    with pytest.raises(RedxError, match="true label of every example"):
        model.calibrate(torch.zeros(2, *model.info.shape), risk=0.5)
    labels = [model.classes[0]] * 30
    assert model.calibrate(torch.zeros(30, *model.info.shape), labels, risk=0.5).examples == 30
    assert len(model.predict(torch.zeros(2, *model.info.shape))) == 2


def test_a_saved_model_keeps_its_risk(model: Model, tmp_path: Path) -> None:
    before = model.calibrate(risk=0.25)
    model.save_pretrained(tmp_path / "saved")
    again = redx.load(tmp_path / "saved").current_control()
    assert (again.risk, again.cutoffs) == (0.25, before.cutoffs)


def test_strangers_get_no_answer(model: Model) -> None:
    assert model.anchor_data is not None
    inputs = torch.randn(60, *model.info.shape, generator=torch.Generator().manual_seed(1))
    answers = model.predict(inputs)
    abstained = model.predict(inputs, abstain=0.3)
    strange = model.is_unfamiliar(inputs, 0.3).tolist()
    assert any(strange)
    assert abstained == [None if odd else answer for answer, odd in zip(answers, strange, strict=True)]
    fewer = model.is_unfamiliar(inputs, 0.1)
    assert not bool((fewer & ~model.is_unfamiliar(inputs, 0.3)).any())
    model.anchor_data = None
    with pytest.raises(RedxError, match="no shared examples"):
        model.predict(inputs, abstain=0.3)
