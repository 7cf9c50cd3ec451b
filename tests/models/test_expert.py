"""Experts as files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import redx

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


def test_an_expert_file_says_what_it_is(run: Path) -> None:
    facts = json.loads((run / "seed-0" / "experts" / NAMES[0] / "expert.json").read_text())
    assert facts["domain"] == NAMES[0]
    assert set(facts["classes"]) <= {str(answer) for answer in range(2, 21)}
    assert set(facts["base"]) >= {"base weights", "backbone", "tokenizer", "feature settings", "classes", "probe"}
    assert all(facts["training"].values())
    assert "cutoff" in facts["ownership"]
