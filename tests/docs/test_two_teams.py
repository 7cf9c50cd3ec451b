"""The page on two teams works as it is written."""

from pathlib import Path

import pytest

from helpers.pages import ROOT, follow
from redx.runs.folder import load


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(tmp_path: Path) -> None:
    assert follow(ROOT / "docs" / "guide" / "two-teams.md", tmp_path) == ["py", "sh", "sh", "sh", "sh", "py", "sh"]
    assert "bad" not in load(tmp_path / "runs" / "digits").experts
    info = load(tmp_path / "runs" / "digits").experts["8-9"].info
    assert info["training"]["examples"] == 159
    assert "rows.hashes" in load(tmp_path / "runs" / "digits").experts["8-9"].tensor_names()
