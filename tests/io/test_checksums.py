"""Checksums notice a file that was changed after it was written, even to other bytes of the same size."""

import os
from pathlib import Path

import pytest

from redx.io.hashing import ChangedFile, check_checksums, write_checksums


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files with their checksums in sums.json."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(path.name.encode() * 10)
    write_checksums(tmp_path / "sums.json", paths)
    return paths


def change(path: Path, content: bytes) -> None:
    """Write other bytes with another time, as every editor does."""
    time = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(time + 10**9, time + 10**9))


def test_unchanged_files_pass(files: list[Path]) -> None:
    check_checksums(files[0].parent / "sums.json", files)


def test_other_bytes_of_the_same_size_are_noticed(files: list[Path]) -> None:
    change(files[1], b"c" * 10)
    with pytest.raises(ChangedFile, match="b was changed"):
        check_checksums(files[0].parent / "sums.json", files)


def test_damaged_checksums_are_noticed(files: list[Path]) -> None:
    (files[0].parent / "sums.json").write_text("{")
    with pytest.raises(ChangedFile, match="damaged"):
        check_checksums(files[0].parent / "sums.json", files)


def test_an_older_cache_gets_checksums(files: list[Path]) -> None:
    sums = files[0].parent / "sums.json"
    content = sums.read_bytes()
    sums.unlink()
    check_checksums(sums, files)
    assert sums.read_bytes() == content
