"""How many modules a reader passes who follows `model.predict`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import torch

import redx
from helpers.own_data import draw_clouds


def modules_of_predict(model: redx.Model, inputs: Any) -> set[str]:
    """Return the modules of redx that a prediction enters, once everything has been read from disk."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := frame.f_globals.get("__name__", "")).startswith("redx."):
            entered.add(name.removeprefix("redx."))

    model.predict(inputs)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        model.predict(inputs)
    finally:
        sys.setprofile(before)
    return entered


def test_predict_passes_few_modules(clouds: redx.Run) -> None:
    model, inputs = redx.load(clouds.folder), torch.tensor(np.asarray(draw_clouds(8, seed=1)["x"]))
    method = {f"composition.{name}" for name in ("parts", "rules", "risk", "confidence")}
    networks = {f"models.{name}" for name in ("backbones.base", "base", "encoder", "trunks", "library", "stack")}
    networks |= {"models.ridge_head", "models.feature_map"}  # the base
    networks |= {"data.frames"}  # whether it is a DataFrame
    networks |= {"models.expert", "models.domain_head"}  # which classes and domains are its own, looked up once
    expected = {"model.model", "data.inputs", "config", "schema", "registry"} | method | networks
    with model.using(router="keys"):
        assert modules_of_predict(model, inputs) <= expected
    with model.using(router="router"):
        assert modules_of_predict(model, inputs) <= expected | {"models.router"}
