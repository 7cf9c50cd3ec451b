"""Experts of a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import redx
from redx.models import persistence
from redx.runs import editing

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


def test_python_and_command_line_change_a_run_alike(run: Path) -> None:
    kept = editing.remove_expert(run, NAMES[1])
    assert editing.add_expert(run, kept).domains == NAMES
    assert persistence.read_info(run / "seed-0").routed == NAMES
