"""Routers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import redx
from redx.errors import RedxError
from redx.models.composed import Model
from redx.models.expert import Expert

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


def test_the_router_of_fixed_width_says_that_it_must_be_trained_anew(model: Model) -> None:
    old = model.experts[NAMES[0]]
    new = Expert(old.info | {"domain": "newcomer"}, old.tensors())
    model.experts.add(new)
    with pytest.raises(RedxError, match=r"no gate for the expert 'newcomer'.*redx router train"):
        model.predict(QUESTIONS)
    with model.using(router="keys"):
        assert len(model.explain(QUESTIONS)[0]["weights"]) == 6
