"""The study of risk: what its curve holds, and that the promise is kept over divisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import redx
from redx.config import BankId
from redx.report.content import Study
from redx.runs.parts import read_parts
from redx.seeding import generator
from redx.tasks.studies import risk


def test_the_curve_has_every_supported_risk_and_no_other(clouds: redx.Run) -> None:
    model = clouds.load()
    parts = {0: read_parts(clouds.folder, 0).banks}
    study = risk.study(model.config, {0: model}, parts)  # pyright: ignore
    curve: Any = study.facts["price_of_risk"]
    least = 1 / (model.current_control().examples + 1)
    assert list(curve) == [f"{value:g}" for value in risk.RISKS if value >= least]
    for figures in curve.values():
        assert 0 <= figures["worst router"] <= figures["clean"] <= 1
    assert study.tables[0].columns[0] == "risk"
    assert study.figures[0].name == "price-of-risk"


def test_the_mean_harm_over_divisions_keeps_the_risk() -> None:
    thresholds = torch.randn(3_000, generator=generator(0, "thresholds"))
    for value in (0.1, 0.02, 0.005):
        assert risk.mean_harm(thresholds[:1_000], thresholds[1_000:], value) <= value * 1.05
    assert risk.mean_harm(thresholds[:10], thresholds[10:], 0.01) == 0  # too few: no expert contributes


def test_a_run_without_risk_control_has_no_curve(clouds: redx.Run) -> None:
    model = clouds.load()
    pooled = BankId("pooled", "mlp")
    config = model.config.model_copy(update={"banks": {pooled: model.config.banks[pooled]}})
    assert risk.study(config, {0: model}, {}) == Study({})  # pyright: ignore


def test_studies_are_merged_in_order() -> None:
    one, other = Study({"a": 1}), Study({"b": 2})
    assert risk.merge(one, other).facts == pytest.approx({"a": 1, "b": 2})
