"""The page on two teams works as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from redx.cli import main
from redx.runs.folder import load

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "two-teams.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.M | re.S)


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(tmp_path: Path) -> None:
    for language, content in BLOCKS:
        if language == "py":
            subprocess.run([sys.executable, "-c", content], check=True, cwd=tmp_path)
            continue
        for line in content.splitlines():
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(line)[1:])
            assert not stop.value.code, line
    assert [language for language, _ in BLOCKS] == ["py", "sh", "sh", "sh"]
    info = load(tmp_path / "runs" / "digits").experts["8-9"].info
    assert info["training"]["examples"] == 159
    assert "rows.hashes" in load(tmp_path / "runs" / "digits").experts["8-9"].tensor_names()
