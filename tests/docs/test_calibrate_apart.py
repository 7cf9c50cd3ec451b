"""The page on owners who calibrate works as it is written."""

from pathlib import Path

import pytest

from helpers.pages import ROOT, follow
from redx.models.calibration import read_calibration


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "guide" / "calibrate-apart.md"
    assert follow(page, tmp_path) == ["py", "sh", "py", "sh", "sh", "sh"]
    out = capsys.readouterr().out
    assert "No owner sent thresholds of 4-5, 6-7: the experts are silent there." in out
    assert "Calibrated by the owners of 0-1, 2-3, 8-9" in out
    control = read_calibration(tmp_path / "runs" / "digits" / "seed-0")
    assert control is not None
    assert (control.owners, control.risk) == ((), 0.05)
