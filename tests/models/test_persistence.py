"""Models as folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import redx
from redx.composition import rules
from redx.errors import RedxError
from redx.models.composed import Model

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture
def model(run: Path) -> Model:
    return redx.load(run)


def scores(model: Model) -> torch.Tensor:
    parts = model.parts(QUESTIONS)
    rule = rules.get_rule("red")
    return rules.compose(rule, parts, rule.weights(parts))


def test_a_saved_model_is_the_same_model(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    again = redx.load(tmp_path / "saved")
    assert torch.equal(scores(again), scores(model))
    told = (tmp_path / "saved" / "README.md").read_text()
    assert all(name in told for name in NAMES)
    assert "certified ε = 1" in told
    with pytest.raises(RedxError, match="not empty"):
        model.save_pretrained(tmp_path / "saved")
    model.experts.remove(NAMES[3])
    model.save_pretrained(tmp_path / "fewer")
    assert torch.equal(scores(redx.load(tmp_path / "fewer")), scores(model))
