"""`redx run`: folders that cannot be written, and settings that do not fit the task."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, refused
from helpers.files import disk_full
from helpers.runs import repeat_clouds
from redx.errors import RedxError
from redx.runs.folder import lock_run, read_config


def test_a_folder_with_another_run_is_refused(ask: Ask, clouds_copy: Path) -> None:
    before = (clouds_copy / "config.json").read_bytes()
    file = read_config(clouds_copy).model_dump()["table"]["file"]
    refused(ask("run", "toy-mlp", "--out", clouds_copy), "holds a run of 'features'", "--out")
    refused(ask("run", "features", "--data", file, "--out", clouds_copy), "other settings", "--out")
    assert (clouds_copy / "config.json").read_bytes() == before


def test_a_folder_with_other_files_is_refused(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    refused(ask("run", "toy", "--out", tmp_path), "not empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.txt"]


@pytest.mark.parametrize("content", ['{"task": "toy", "see', "[]", '{"task": 3}', ""])
def test_a_truncated_config_is_refused(ask: Ask, clouds_copy: Path, content: str) -> None:
    (clouds_copy / "config.json").write_text(content)
    refused(ask("certify", clouds_copy), "config.json")
    refused(ask("run", "toy", "--out", clouds_copy), "config.json")
    assert (clouds_copy / "config.json").read_text() == content


def test_a_read_only_folder_and_a_full_disk_are_reported(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    refused(ask("run", "toy", "--out", file / "run"), "Cannot write", "--out")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere, so the error of the system is patched in
        monkeypatch.setattr("builtins.open", _except_in(locked, open))
        monkeypatch.setattr(os, "open", _except_in(locked, os.open))
    refused(ask("run", "toy", "--out", locked), "Cannot write", "--out")
    monkeypatch.undo()
    monkeypatch.setattr(os, "replace", disk_full)
    refused(ask("run", "toy", "--out", tmp_path / "full"), "Cannot write", "free space")
    assert not [path for path in (tmp_path / "full").iterdir() if path.name != ".lock"]


def _except_in(folder: Path, real: Callable[..., object]) -> Callable[..., object]:
    def guarded(path: object, *rest: object, **more: object) -> object:
        if str(path).startswith(str(folder)):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)

    return guarded


def test_two_runs_cannot_write_to_one_folder(clouds: redx.Run, clouds_copy: Path) -> None:
    config = read_config(clouds_copy)
    with lock_run(clouds_copy, config), pytest.raises(RedxError, match="Another run is writing"):
        repeat_clouds(clouds_copy, clouds)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "jsonl"), "--data FILE"),
        (("run", "features", "--data", "no.npz"), "no file no.npz"),
        (("run", "features", "--data", "no.npz", "--share", "2"), "base.share"),
    ],
)
def test_options_of_the_users_data_are_checked(
    words: tuple[str, ...], message: str, bert: Path, ask: Ask, own_cache: Path
) -> None:
    extra = ("--backbone", str(bert)) if "jsonl" in words else ()
    refused(ask(*words, *extra), message)


def test_an_option_that_the_task_does_not_read_is_refused(ask: Ask) -> None:
    code, out, err = ask("run", "toy", "--text", "body")
    assert (code, out) == (2, "")
    assert "No such option: --text" in err
