"""The run folder: nothing of others is deleted, and the user's umask holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import redx
from helpers.own_data import draw_clouds, write_arrays
from redx.errors import RedxError
from redx.io.files import write_bytes

FOREIGN = (".notes.abcdefgh.tmp", ".notes.0123abcd.tmp", ".config.json.0123abcd.tmp", ".edit/new/x", "seed-x/.edit/y")


def run_into(folder: Path) -> None:
    file = write_arrays(folder.parent / "clouds.npz", **draw_clouds(80))
    epochs = {"base": 1, "experts": 1, "router": 1}
    redx.run("features", "quick", out=folder, file=str(file), run="red", study="none", epochs=epochs)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


@pytest.mark.parametrize("config", [None, {"model_type": "qwen3"}, {}, []])
def test_a_foreign_folder_is_refused_untouched(tmp_path: Path, config: object) -> None:
    folder = tmp_path / "foreign"
    fill(folder, FOREIGN)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    before = content(folder)
    with pytest.raises(RedxError, match="is not empty"):
        run_into(folder)
    assert content(folder) == before


def test_hidden_files_of_others_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    fill(folder, (".notes.abcdefgh.tmp", ".notes.0123abcd.tmp", ".git/HEAD", ".edit/x"))
    before = content(folder)
    for _ in range(2):
        run_into(folder)
        assert before.items() <= content(folder).items()


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_bytes(tmp_path / "file.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == mode


def test_what_a_killed_process_left_is_deleted_by_the_next_writer(tmp_path: Path) -> None:
    stale, other = tmp_path / ".file.json.0123abcd.tmp", tmp_path / ".other.json.0123abcd.tmp"
    stale.touch()
    other.touch()
    write_bytes(tmp_path / "file.json", b"{}")
    assert not stale.exists()
    assert other.exists()
