"""Arrays of .npz files: shapes, types and sizes that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from redx.data.arrays import read_arrays, to_column, to_matrix
from redx.errors import RedxError

FILE = Path("f.npz")


def test_needed_and_optional_arrays_are_read(tmp_path: Path) -> None:
    x, y = numpy.arange(6.0).reshape(3, 2), numpy.array(["a", "b", "a"])
    numpy.savez(tmp_path / "f.npz", x=x, y=y, unused=x)
    arrays = read_arrays(tmp_path / "f.npz", ["x", "y"], ["domain"])
    assert list(arrays) == ["x", "y"]
    assert numpy.array_equal(arrays["x"], x)
    assert arrays["y"].tolist() == ["a", "b", "a"]
    assert list(read_arrays(tmp_path / "f.npz", ["x"], ["unused"])) == ["x", "unused"]


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    numpy.savez_compressed(tmp_path / "bomb.npz", x=numpy.zeros((1000, 1000)), y=numpy.zeros(1000))
    with pytest.raises(RedxError, match=r"unpacks to .* more than 1,000,000"):
        read_arrays(tmp_path / "bomb.npz", ["x", "y"], [], max_bytes=1_000_000)
    assert len(read_arrays(tmp_path / "bomb.npz", ["x", "y"], [])) == 2


def test_features_become_float32() -> None:
    matrix = to_matrix(FILE, "x", numpy.array([[1, 2], [3, 4]]))
    assert matrix.dtype == numpy.float32
    assert matrix.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RedxError, match=r"Row 2 of f\.npz .*NaN or infinity in 'x'"):
        to_matrix(FILE, "x", numpy.array([[1.0], [1e300]]))  # too large for float32


def test_labels_become_text() -> None:
    assert to_column(FILE, "y", numpy.array([1.0, 2.0]), 2) == ["1", "2"]
    assert to_column(FILE, "y", numpy.array([b"a", b"b"]), 2) == ["a", "b"]
    with pytest.raises(RedxError, match=r"Row 2 of f\.npz .*no value in the column 'y'"):
        to_column(FILE, "y", numpy.array([1.0, numpy.nan]), 2)
    with pytest.raises(RedxError, match=r"shape \(2,\); give \(3,\)"):
        to_column(FILE, "y", numpy.zeros(2), 3)
