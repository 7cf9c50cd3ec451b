"""The page on verifying and signing works as it is written."""

import shutil
from pathlib import Path

import redx
from helpers.pages import ROOT, follow
from redx.runs.integrity import verify_signature

PAGE = ROOT / "docs" / "guide" / "verify.md"


def test_every_command_of_the_page_runs_in_order(clouds: redx.Run, tmp_path: Path) -> None:
    run = Path(shutil.copytree(clouds.folder, tmp_path / "runs" / "toy"))
    assert follow(PAGE, tmp_path) == ["sh", "sh"]
    assert not verify_signature(run, tmp_path / "me.key.pub")
    (run / "seed-0" / "risk.json").write_text("{}")
    assert [difference[0] for difference in verify_signature(run, tmp_path / "me.key.pub")] == ["seed-0/risk.json"]
