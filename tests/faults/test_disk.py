"""The model of a disk: what was flushed is there after a power failure, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.disk import Disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file and a folder in it."""
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "old").write_text("old")
    return root


def flush(disk: Disk, path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    disk.flush(descriptor)
    os.close(descriptor)


def content(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_an_entry_lasts_when_its_folder_was_flushed(root: Path) -> None:
    disk = Disk(root)
    for name in ("inner/a", "b"):
        (root / name).write_text("new")
        flush(disk, root / name)
    flush(disk, root / "inner")
    disk.fail()
    assert content(root) == {"inner/a": "new", "old": "old"}


def test_a_file_that_was_not_flushed_is_torn(root: Path) -> None:
    disk = Disk(root)
    (root / "a").write_text("1234")
    flush(disk, root)
    disk.fail()
    assert content(root) == {"a": "12", "old": "old"}


def test_a_replacement_without_a_flush_is_undone(root: Path) -> None:
    disk = Disk(root)
    (root / "new").write_text("new")
    flush(disk, root / "new")
    os.replace(root / "new", root / "old")
    disk.fail()
    assert content(root) == {"old": "old"}


def test_a_move_that_was_flushed_where_it_came_from_alone_loses_the_file(root: Path) -> None:
    disk = Disk(root)
    os.rename(root / "old", root / "inner" / "old")
    flush(disk, root)
    disk.fail()
    assert content(root) == {}


@pytest.mark.parametrize("seed", list("01234567"))
def test_a_torn_failure_keeps_a_move_whole(root: Path, seed: str) -> None:
    disk = Disk(root)
    os.rename(root / "old", root / "inner" / "new")
    disk.fail(torn=seed)
    assert content(root) in ({"old": "old"}, {"inner/new": "old"})
