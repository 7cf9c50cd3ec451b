"""An extension of a task from outside: trained in a stage, kept in the run folder, and asked before the model."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import redx
from helpers.runs import repeat_clouds
from redx.config import RunConfig
from redx.errors import RedxError
from redx.runs.checkpoint import evaluate_checkpoint, export_run
from redx.runs.shrinking import shrink
from redx.serve.answers import answer_queries
from redx.serve.loaded import LoadedRun
from redx.serve.queries import PredictBody, Query
from redx.tasks import TASKS, get_task

Ask = Callable[[Sequence[Any]], list[dict[str, Any]]]


class Shift:
    """Asks about inputs that are moved by a trained number."""

    def __init__(self, by: float) -> None:
        self.by = by

    def move(self, inputs: Sequence[Any]) -> list[list[float]]:
        return [[value + self.by for value in row] for row in inputs]


def make_module(wanted: bool) -> types.ModuleType:
    """Return a module that offers what an extension offers."""
    module: Any = types.ModuleType("shift_extension")

    def train(config: RunConfig, seed: int) -> dict[str, torch.Tensor]:
        return {"by": torch.tensor([0.5 + seed])}

    def answer(shift: Shift, inputs: Sequence[Any], ask: Ask) -> list[dict[str, Any]]:
        return [{"steps": [], **facts} for facts in ask(shift.move(inputs))]

    module.NAME = "shift"
    module.is_wanted = lambda config: wanted
    module.train, module.answer = train, answer
    module.restore = lambda config, tensors: Shift(float(tensors["by"]))
    module.solver = lambda shift, model, rule: (shift, model, rule)
    return module


@pytest.fixture
def extend(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Give the task `features` an extension, which its runs want or do not."""

    def give(wanted: bool) -> None:
        monkeypatch.setitem(sys.modules, "shift_extension", make_module(wanted))
        task = dataclasses.replace(get_task("features"), extension="shift_extension")
        monkeypatch.setitem(TASKS._entries, "features", task)

    return give


def test_an_extension_is_trained_read_and_asked(
    clouds: redx.Run, extend: Callable[[bool], None], tmp_path: Path
) -> None:
    extend(True)
    folder = repeat_clouds(tmp_path / "run", clouds).folder
    assert (folder / "seed-0" / "shift.safetensors").exists()
    shift, model, rule = redx.solver(folder)
    assert (shift.by, rule) == (0.5, "red")
    loaded = LoadedRun.read(folder, None)
    inputs, shape = torch.zeros(3, model.info.shape[0]).tolist(), model.info.shape
    (through,) = answer_queries(loaded, [Query.from_body(PredictBody(inputs=inputs), loaded.kind, shape)])
    assert [facts["answer"] for facts in through] == model.predict(torch.tensor(inputs) + 0.5)
    assert "steps" in through[0]
    (plain,) = answer_queries(loaded, [Query.from_body(PredictBody(inputs=inputs, steps=False), loaded.kind, shape)])
    assert [facts["answer"] for facts in plain] == model.predict(torch.tensor(inputs))
    with pytest.raises(RedxError, match="A run with a shift knows no abstention"):
        answer_queries(loaded, [Query.from_body(PredictBody(inputs=inputs, abstain=0.05), loaded.kind, shape)])
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "shift.safetensors").exists()
    checkpoint = export_run(folder, tmp_path / "one.safetensors").path
    assert min(evaluate_checkpoint(checkpoint).same.values()) == 1
    assert shrink(checkpoint, 0).path.exists()


def test_a_run_that_does_not_want_its_extension_has_none(clouds: redx.Run, extend: Callable[[bool], None]) -> None:
    assert redx.load(clouds.folder).extension is None
    extend(False)
    assert redx.load(clouds.folder).extension is None
    with pytest.raises(RedxError, match="redx run steps"):
        redx.solver(clouds.folder)
