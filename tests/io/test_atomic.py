"""Files appear whole or not at all, and nobody's temporary files are touched while they are written."""

from pathlib import Path

import pytest

from redx.errors import RedxError
from redx.io.files import atomic_path, write_bytes


def test_the_old_content_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "file"
    write_bytes(path, b"old")
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_content_alone(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


def test_only_temporary_files_that_nobody_writes_are_deleted(tmp_path: Path) -> None:
    stale = tmp_path / ".file.0123abcd.tmp"
    foreign = [tmp_path / ".file.tmp", tmp_path / ".other.0123abcd.tmp"]
    for path in (stale, *foreign):
        path.write_bytes(b"x")
    with atomic_path(tmp_path / "file") as first:
        first.write_bytes(b"first")
        write_bytes(tmp_path / "file", b"second")  # another writer of the same file
        assert first.exists()
    assert (tmp_path / "file").read_bytes() == b"first"
    assert not stale.exists()
    assert all(path.exists() for path in foreign)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RedxError, match="Cannot write"):
        write_bytes(tmp_path / "file" / "inner", b"x")
