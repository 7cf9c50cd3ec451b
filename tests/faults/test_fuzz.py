"""Mutated files of every format are accepted or refused in one sentence."""

import shutil
from pathlib import Path

import pytest

import redx
from faults.fuzz import run_cases


@pytest.mark.slow
def test_mutated_files_are_accepted_or_refused(own_cache: Path, adapters: redx.Run, tmp_path: Path) -> None:
    folder = tmp_path / "fuzz"
    folder.mkdir()
    copy = Path(shutil.copytree(adapters.folder, tmp_path / "adapters"))
    count = run_cases(range(3000), seed=0, folder=folder, adapters=copy)
    assert not count.failures, "\n".join(count.failures)
    assert count.accepted > 200
    assert count.refused > 1500
