"""TOML files are read, or refused with the line of the mistake."""

from pathlib import Path

import pytest

from redx.errors import RedxError
from redx.io.reading import TOML_BYTES, read_toml


def test_tables_and_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "redx.toml"
    path.write_text('[check]\nmin_accuracy = 0.9\nrule = "red"\n')
    assert read_toml(path) == {"check": {"min_accuracy": 0.9, "rule": "red"}}


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[check\n", "line 1"), (b"a = 1\na = 2\n", "line 2"), (b"\xff", "UTF-8"), (b"a=1\n" * TOML_BYTES, "larger")],
    ids=["open bracket", "key twice", "no UTF-8", "too large"],
)
def test_mistakes_get_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "redx.toml"
    path.write_bytes(content)
    with pytest.raises(RedxError, match=words) as error:
        read_toml(path)
    assert str(path) in str(error.value)
