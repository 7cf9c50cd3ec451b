"""Files: atomic writes, JSON, tensors, natural order and safe names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from helpers.files import disk_full
from redx.errors import RedxError
from redx.io import files
from redx.io.files import check_name, natural_order, to_safe_name
from redx.io.reading import read_json
from redx.io.safetensors_files import read_tensors

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    assert tuple(sorted(set(NAMES), key=natural_order)) == NAMES
    assert sorted(["b", "a10", "a9", "a"], key=natural_order) == ["a", "a9", "a10", "b"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", ".hidden", "a\n", "x" * 101, "con "])
def test_a_name_cannot_lead_out_of_its_folder(name: str) -> None:
    with pytest.raises(RedxError, match="cannot be called"):
        check_name(name)


def test_safe_names_stay_as_they_are_and_others_are_changed() -> None:
    assert check_name("été 1") == "été 1"
    assert to_safe_name("a/b:c") == "a_b_c"
    assert to_safe_name("e\u0301") == "\u00e9"  # composed, so that equal names are equal folders
    assert len(to_safe_name("x" * 300)) == files.MAX_NAME


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    files.write_bytes(path, b"before")
    assert path.stat().st_mode & 0o777 == 0o644
    for call in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, disk_full)
            with pytest.raises(RedxError, match=r"Cannot write .*file \(No space left on device\)"):
                files.write_bytes(path, b"after")
        assert path.read_bytes() == b"before"
        assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_an_error_while_writing_leaves_no_temporary_file(tmp_path: Path) -> None:
    def fail() -> None:
        with files.atomic_path(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not list(tmp_path.iterdir())


def test_json_is_written_and_read(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "é"]}
    files.write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "x.json", float("nan"))
    with pytest.raises(RedxError, match=r"There is no .*none\.json"):
        read_json(tmp_path / "none.json")
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(RedxError, match="truncated or not JSON"):
        read_json(tmp_path / "x.json")


def test_tensors_are_written_and_read(tmp_path: Path) -> None:
    tensors = {"a.x": torch.arange(6).view(2, 3).T, "b.y": torch.ones(2, dtype=torch.bool)}  # one not contiguous
    files.write_tensors(tmp_path / "x.safetensors", tensors)
    again = read_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())
    assert list(files.without_prefix(again, "a")) == ["x"]
    with pytest.raises(RedxError, match=r"There is no .*none\.safetensors"):
        read_tensors(tmp_path / "none.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"short")
    with pytest.raises(RedxError, match="truncated or not a safetensors file"):
        read_tensors(tmp_path / "x.safetensors")
