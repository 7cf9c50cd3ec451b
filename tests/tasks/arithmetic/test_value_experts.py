"""A run whose experts correct values: trained, changed, exported and narrowed like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redx
from helpers.runs import text_settings
from redx.config import BankId
from redx.errors import RedxError
from redx.runs import checkpoint, editing, shrinking
from redx.runs.parts import read_parts

pytestmark = pytest.mark.slow
ANCHORED = BankId("residual", "anchored")


@pytest.fixture(scope="module")
def run(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> redx.Run:
    """A run of seconds with experts of shape `shift`."""
    folder = tmp_path_factory.mktemp("values") / "run"
    return redx.run("addition", "quick", out=folder, **text_settings(qwen, "sum"))


def test_one_expert_alone_gives_its_own_value(run: redx.Run) -> None:
    parts = read_parts(run.folder, 0).banks
    residual, standalone = parts[ANCHORED], parts[BankId("standalone", "anchored")]
    composed = residual.base[:, None] + residual.residuals
    assert torch.allclose(composed, standalone.residuals, atol=1e-3)  # the same regression as a head of its own


def test_removing_and_adding_an_expert_restores_every_tensor(run: redx.Run) -> None:
    before = read_parts(run.folder, 0).banks
    removed = editing.remove_expert(run.folder, "range_21_40")
    assert read_parts(run.folder, 0).banks[ANCHORED].experts == 4
    editing.add_expert(run.folder, removed)
    after = read_parts(run.folder, 0).banks
    for bank_id, parts in before.items():
        for name, tensor in parts.tensors().items():
            assert torch.equal(tensor, getattr(after[bank_id], name)), (bank_id, name)


def test_a_narrowed_checkpoint_gives_the_same_answers(run: redx.Run, tmp_path: Path) -> None:
    full = checkpoint.export_run(run.folder, tmp_path / "full.safetensors").path
    slim = shrinking.shrink(full, layers=0, out=tmp_path / "slim.safetensors", rule="red").path
    assert set(checkpoint.evaluate_checkpoint(full).same.values()) == {1.0}
    assert set(checkpoint.evaluate_checkpoint(slim).same.values()) == {1.0}


def test_an_expert_of_values_brings_no_classes(run: redx.Run, tmp_path: Path) -> None:
    data = tmp_path / "own.jsonl"
    rows = [{"question": f"What is {number} plus 90?", "answer": "many"} for number in range(1, 60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RedxError, match="bring no classes of their own"):
        editing.train_expert(run.folder, "big", data, tmp_path / "big", "question", "answer", new_classes=True)


def test_an_expert_trained_later_has_the_shape_of_the_run(run: redx.Run, tmp_path: Path) -> None:
    data = tmp_path / "dozens.jsonl"
    rows = [{"question": f"What is {number} plus 12?", "answer": number + 12} for number in range(1, 60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expert = editing.train_expert(run.folder, "dozens", data, tmp_path / "dozens")
    assert expert.info["banks"][str(ANCHORED)]["shape"] == "shift"
    editing.add_expert(run.folder, tmp_path / "dozens", force=True)  # some of its questions calibrate the run
    assert "dozens" in redx.load(run.folder).experts.names
    editing.remove_expert(run.folder, "dozens")
