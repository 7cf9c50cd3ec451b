"""Arrays of .npz and .npy files: exact values, and limits that are checked before memory is allocated."""

from pathlib import Path

import numpy
import pytest

from redx.errors import RedxError
from redx.io.array_files import array_header, map_array, read_npz


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f8", "<i2", "?", "<U3", "S2"])
def test_arrays_are_read_as_they_were_written(tmp_path: Path, order: str, kind: str) -> None:
    array = numpy.asarray(numpy.arange(6).reshape(2, 3).astype(kind), order=order)  # type: ignore[call-overload]
    for save in (numpy.savez, numpy.savez_compressed):
        save(tmp_path / "arrays.npz", x=array, other=numpy.zeros(1))
        read = read_npz(tmp_path / "arrays.npz", ["x"], ["y"])
        assert list(read) == ["x"]
        assert read["x"].dtype == array.dtype
        assert (read["x"] == array).all()


def test_a_missing_array_and_objects_are_refused(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "arrays.npz", x=numpy.array([{}]))
    with pytest.raises(RedxError, match="no array 'y', only x"):
        read_npz(tmp_path / "arrays.npz", ["y"])
    with pytest.raises(RedxError, match="Python objects"):
        read_npz(tmp_path / "arrays.npz", ["x"])


def test_a_changed_value_breaks_the_checksum_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    numpy.savez(path, x=numpy.full(100, 7, "u1"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\7" * 100, b"\7" * 99 + b"\6"))
    with pytest.raises(RedxError, match="damaged"):
        read_npz(path, ["x"])


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    numpy.savez_compressed(tmp_path / "zeros.npz", x=numpy.zeros(60_000_000, "u1"))
    with pytest.raises(RedxError, match="unpacks to 480,000,000 bytes"):
        read_npz(tmp_path / "zeros.npz", ["x"])
    numpy.savez_compressed(tmp_path / "some.npz", x=numpy.zeros(1000))
    with pytest.raises(RedxError, match="unpacks to 8,000 bytes, more than 4,000"):
        read_npz(tmp_path / "some.npz", ["x"], max_bytes=4000)


def test_a_map_reads_values_and_refuses_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    numpy.save(path, numpy.arange(12.0).reshape(3, 4))
    assert array_header(path).shape == (3, 4)
    assert map_array(path, "r", "write it anew")[2, 3] == 11
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(RedxError, match="truncated; write it anew"):
        map_array(path, "r", "write it anew")
