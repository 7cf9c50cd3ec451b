"""The gate for files from outside: what it refuses, and that no other module reads files by itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import redx
from redx.errors import RedxError
from redx.io import reading

READERS = re.compile(
    r"json\.loads?\(|\.read_text\(|\.read_bytes\(|(?:numpy|np)\.load\(|safe_open|load_file|torch\.load\(|zipfile\.|tarfile\."
    r"|gzip\.open|pyarrow|pickle\.load|\.open\(\"r|(?<![\w.])open\([^)]*\"rb?\"|tomllib|model_validate_json"
)
ALLOWED = {  # files outside `io` that read something themselves, and why they may
    "data/tables.py": "a user's own Parquet file, by pyarrow and with bounds on what it unpacks to",
    "tasks/mnist/download.py": "archives from mirrors, whose members are compared with digests by io.download.install",
    "models/backbones/hub.py": "a wheel from PyPI, whose members are compared with digests by io.download.install",
    "runs/kit.py": "an owner's kit, whose entries are compared with the names and sizes that a kit has",
    "tasks/arithmetic/sentences.py": "templates inside the package",
    "report/page.py": "a template inside the package",
    "model/card.py": "a template inside the package",
    "serve/app.py": "the files of the page inside the package",
    "adapters/domains.py": "packages from PyPI and npm, compared with digests before they are opened",
}


def test_no_other_module_reads_files_by_itself() -> None:
    source = Path(redx.__file__).parent
    readers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if path.parent.name != "io" and READERS.search(path.read_text())
    }
    assert readers == set(ALLOWED)


def test_any_error_becomes_one_sentence_but_interrupts_pass() -> None:
    for error in (ValueError("x"), MemoryError(), RecursionError(), OverflowError(), NotImplementedError()):
        with pytest.raises(RedxError, match=r"^f is odd; do this\.$"), reading.guarded("f", "is odd", "do this"):
            raise error
    with pytest.raises(RedxError, match="mine"), reading.guarded("f", "is odd", "do this"):
        raise RedxError("mine")
    for stop in (KeyboardInterrupt, SystemExit):
        with pytest.raises(stop), reading.guarded("f", "is odd", "do this"):
            raise stop


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(bytes(100))
    for path, words in {
        tmp_path / "pipe": "a device or a pipe",
        Path("/dev/zero"): "a device or a pipe",
        tmp_path / "folder": "is a folder",
        tmp_path / "none": "There is no",
        tmp_path / "file" / "x": "cannot be read",
        tmp_path / ("x" * 300): "cannot be read",
        Path("a\0b"): "can be called",
        Path("\ud800"): "can be called",
        tmp_path / "file": "has 100 bytes, more than 99",
    }.items():
        with pytest.raises(RedxError, match=words):
            reading.read_bytes(path, limit=99)
    assert reading.read_bytes(tmp_path / "file", limit=100) == bytes(100)


@dataclass(frozen=True)
class Point:
    """Two numbers."""

    x: int
    y: float = 0.0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"x": 1, "x": 2}', "has the key 'x' twice"),
        (b'{"x": NaN}', "not JSON"),
        (b'{"x": 1e999}', "not JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"x": "\\ud800"}', "half a character"),
        (b'{"x": "\xff"}', "not JSON"),
        (b'{"x": ', "not JSON"),
        (b'{"x": "one"}', "does not hold what it should"),
        (b'{"y": 1}', "does not hold what it should"),
        (b"3", "does not hold what it should"),
    ],
)
def test_json_that_is_not_what_it_should_be(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(content)
    with pytest.raises(RedxError, match=words):
        reading.read_json(path, Point)


def test_json_that_fits_its_schema(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"x": 1, "y": 2.5}')
    assert reading.read_json(tmp_path / "f.json", Point) == Point(1, 2.5)
    assert reading.parse_json('{"a": Infinity}', finite=False) == {"a": float("inf")}


def test_the_values_of_a_json_text_are_counted_before_they_are_made(tmp_path: Path) -> None:
    for text in ("[[],[],[],[]]", '[{"a":1},{"a":1},3]', '{"a":1,"b":2,"c":[1,2,3,4]}'):
        count = sum(map(text.count, ",[{"))
        assert reading.parse_json(text, values=count) is not None
        with pytest.raises(reading.TooManyValues, match=f"has more than {count - 1} values"):
            reading.parse_json(text, values=count - 1)
    path = tmp_path / "x.json"
    path.write_text("[" + "[]," * reading.JSON_VALUES + "1]")
    with pytest.raises(RedxError, match=r"x\.json has more than 2,097,152 values; repeat the run with --out ANOTHER"):
        reading.read_json(path)
