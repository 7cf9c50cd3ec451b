"""Nothing outside a run folder is opened, written, moved or deleted through it, and readers write nothing at all.

A sample of the folders and verbs; `make faults` tries all of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from faults.crafted import attack, copy_world, crafts, open_run, verbs
from faults.worlds import Worlds, ask
from redx.io.files import write_json
from redx.io.manifest import MANIFEST

READERS = (
    "experts list",
    "certify",
    "evaluate",
    "check",
    "redx.load",
    "serve",
    "inspect",
    "export",
    "experts diff",
    "experts train",
    "adapters list",
    "solve",
    "verify",
    "experts kit",
)
UNSUITED = ("adapters list", "solve")  # for a run on features
PENDING = (*READERS[:6], "experts diff")  # readers that need the folder of the seed
PART = 9  # one in so many folders is tried here
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


def test_there_are_at_least_two_hundred_folders(worlds: Worlds) -> None:
    names = [craft.name for craft in crafts(worlds.template / "run")]
    assert len(names) >= 200
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PART))
def test_nothing_outside_is_touched(worlds: Worlds, part: int) -> None:
    """Every verb opens some of the folders, and each folder is opened by some of the verbs."""
    names = list(verbs(worlds))
    for number, craft in enumerate(crafts(worlds.template / "run")[part::PART]):
        if number % 3 == 0:
            problems = attack(worlds, craft, [names[(number + part) % len(names)]])
            assert not problems, (craft.name, problems)


@pytest.mark.parametrize("name", ["redx.load", "certify", "verify"])
def test_a_manifest_names_nothing_outside(worlds: Worlds, name: str) -> None:
    found = [craft for craft in crafts(worlds.template / "run") if "outside" in craft.name.casefold()]
    hostile = [craft for craft in found if craft.name.endswith((MANIFEST, "summary.json"))]
    assert len(hostile) == 8
    for craft in hostile:
        assert attack(worlds, craft, [name]) == []


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return inode, size and time of change of every entry."""
    paths = [folder, *folder.rglob("*")]
    status = {str(path): os.lstat(path) for path in paths}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in status.items()}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_writes_nothing_into_the_run(worlds: Worlds, tmp_path: Path, name: str) -> None:
    copy_world(worlds, tmp_path)
    before = snapshot(tmp_path / "run")
    with worlds.inside(tmp_path):
        code, out = open_run(verbs(worlds)[name])
    assert (code == 0) == (name not in UNSUITED), out
    assert snapshot(tmp_path / "run") == before


@pytest.mark.parametrize("name", PENDING)
def test_a_reader_leaves_an_interrupted_change_to_a_writer(worlds: Worlds, tmp_path: Path, name: str) -> None:
    copy_world(worlds, tmp_path)
    write_json(tmp_path / "run/seed-0/.journal.json", {"moves": [["move", "experts/1", "removed/1"]]})
    before = snapshot(tmp_path / "run")
    with worlds.inside(tmp_path):
        code, out = open_run(verbs(worlds)[name])
        assert code == 2
        assert "complete it with `redx recover run`" in out
        assert snapshot(tmp_path / "run") == before
        assert ask(["recover", "run"]) == (0, "completed a change of run/seed-0\n")
        assert ask(["recover", "run"]) == (0, "run is complete\n")
    assert (tmp_path / "run/seed-0/removed/1/expert.json").exists()
    assert not (tmp_path / "run/seed-0/.journal.json").exists()


def test_a_folder_without_a_run_is_not_recovered(worlds: Worlds, tmp_path: Path) -> None:
    write_json(tmp_path / ".journal.json", {"moves": []})
    code, out = ask(["recover", str(tmp_path)])
    assert (code, out.count("\n")) == (2, 1)
    assert "holds no run" in out
    assert (tmp_path / ".journal.json").exists()


def test_the_verbs_that_write_work_on_a_folder_that_is_not_crafted(worlds: Worlds, tmp_path: Path) -> None:
    for name in ("experts replace", "experts add to another", "calibrate"):
        world = tmp_path / name
        copy_world(worlds, world)
        with worlds.inside(world):
            code, out = open_run(verbs(worlds)[name])
        assert code == 0, out
