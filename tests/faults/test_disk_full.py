"""A disk that is full or read-only: one sentence, exit code 2, and the state before."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.injection import run_child
from faults.processes import start, wait
from faults.worlds import Worlds, leftovers, state_of

VERBS = ("run", "experts add", "router train", "export")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk is not permitted here; the injected faults stand in for it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", VERBS)
def test_a_full_disk_leaves_the_state_before(worlds: Worlds, small_disk: Path, name: str) -> None:
    verb = worlds.verbs()[name]
    world = Path(shutil.copytree(worlds.copy(verb), small_disk / "world"))
    (world / "full.safetensors").unlink()
    before = state_of(world)
    filler = small_disk / "filler"
    status = os.statvfs(small_disk)
    filler.write_bytes(b"x" * max(0, (status.f_bavail - 3) * status.f_bsize))
    ended = wait(start(verb.words, world))
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended
    assert ended.err.startswith("redx: "), ended
    assert "No space left" in ended.err
    if verb.whole:
        assert state_of(world) == before
    assert not [name for name in leftovers(world) if name.endswith(".tmp")]
    filler.unlink()
    ended = wait(start(verb.words, world))
    assert ended.code == 0, ended


@pytest.mark.slow
@pytest.mark.parametrize("name", VERBS[1:])
def test_a_disk_that_is_mounted_read_only_leaves_the_state_before(worlds: Worlds, small_disk: Path, name: str) -> None:
    verb = worlds.verbs()[name]
    world = Path(shutil.copytree(worlds.copy(verb), small_disk / "world"))
    before = state_of(world)
    mount = ["mount", "-o", "remount,ro", str(small_disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a disk again is not permitted here; the injected faults stand in for it")
    ended = wait(start(verb.words, world))
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended
    assert "Read-only file system" in ended.err
    assert state_of(world) == before


@pytest.mark.parametrize("mode", ["full", "quota", "readonly"])
@pytest.mark.parametrize("name", VERBS)
def test_a_disk_that_refuses_the_first_file_leaves_the_state_before(worlds: Worlds, name: str, mode: str) -> None:
    verb = worlds.verbs()[name]
    world = worlds.copy(verb)
    with worlds.inside(world):
        before = state_of(world)
        ended = run_child(verb.words, world, 0, mode)
        assert ended.code == 2, ended
        assert ended.err.startswith("redx: "), ended
        assert ended.err.count("\n") == 1, ended
        assert state_of(world) == before
