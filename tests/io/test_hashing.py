"""Hashes of tensors and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from redx.io import hashing


def test_other_tensors_or_words_have_another_hash() -> None:
    one = {"w": torch.zeros(3)}
    assert hashing.hash_tensors(one, "a") == hashing.hash_tensors({"w": torch.zeros(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors({"w": torch.ones(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors(one, "b")


def test_checksums_of_large_files_are_kept_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "MARKED_BYTES", 4)
    monkeypatch.setattr(hashing, "SETTLED", -1)
    file = tmp_path / "large"
    file.write_bytes(b"large file")
    first = hashing.checksum(file)
    (marker,) = (tmp_path / "cache" / "checksums").iterdir()

    def refuse(*_: object) -> None:
        raise AssertionError("the file is hashed again")

    hashing._hash_file.cache_clear()  # as in a new process
    with monkeypatch.context() as patch:
        patch.setattr(hashing.hashlib, "file_digest", refuse)
        assert hashing.checksum(file) == first
    before = file.stat()
    file.write_bytes(b"other file")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time: the time of change still differs
    hashing._hash_file.cache_clear()
    assert hashing.checksum(file) != first
    marker.write_text("damaged")
    hashing._hash_file.cache_clear()
    assert hashing.checksum(file) != first


def test_files_that_were_just_written_get_no_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "MARKED_BYTES", 4)
    (tmp_path / "large").write_bytes(b"large file")
    hashing.checksum(tmp_path / "large")
    assert not (tmp_path / "cache").exists()
