"""What a change of experts would do to the answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import redx
from redx.cli import main

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


def do(*words: object) -> None:
    """A command that ends well."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 0


def test_a_diff_tells_what_would_happen_and_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(path for path in run.rglob("*") if path.is_file())
    do("experts", "diff", str(run), "--remove", NAMES[2], "--json")
    found = json.loads(capsys.readouterr().out)
    assert sorted(path for path in run.rglob("*") if path.is_file()) == files
    assert set(found["domains"]) == set(NAMES)
    assert found["flips"] >= len(found["examples"])
    assert found["gained"] - found["lost"] == round(
        (found["accuracy"]["after"] - found["accuracy"]["before"])
        * sum(each["examples"] for each in found["domains"].values())
    )
    one = found["certificates"]["0"]
    assert one["before"] == found["accuracy"]["before"]
    assert one["after"] == found["accuracy"]["after"]
    do("experts", "remove", str(run), NAMES[2])
    kept = run / "seed-0" / "removed" / NAMES[2]
    capsys.readouterr()
    do("experts", "diff", str(run), "--add", str(kept), "--json")
    back = json.loads(capsys.readouterr().out)
    assert back["accuracy"] == {"before": found["accuracy"]["after"], "after": found["accuracy"]["before"]}
    assert (back["gained"], back["lost"]) == (found["lost"], found["gained"])
    do("experts", "diff", str(run), "--add", str(kept))
    assert "Certificates" in capsys.readouterr().out
