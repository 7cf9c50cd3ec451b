"""Arrays of .npz and .npy files, whose sizes are checked in their headers before any memory is allocated."""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from redx.errors import RedxError
from redx.io.reading import TENSOR_BYTES, guarded, open_file

if TYPE_CHECKING:
    import numpy

HEADER_BYTES = 10_000  # of one array; numpy's own limit
SMALL_BYTES, SMALL_ROWS = 400 * 2**20, 2**20  # what any file may unpack to, however small it is
EXPANSION = 4  # a larger file may unpack to this many times its size
ROW_BYTES = 25  # and has at most one row for this many bytes, since every row costs Python objects
VALUE_BYTES, TEXT_COPIES = 8, 3  # memory that a number takes at least, and copies of a text while it is read


@dataclass(frozen=True)
class ArrayHeader:
    """The header of one array.

    Attributes
    ----------
    shape, dtype, fortran
        Shape and type of the array, and whether its first axis changes fastest.
    start
        Size of the header in bytes, after which the values begin.
    """

    shape: tuple[int, ...]
    dtype: numpy.dtype
    fortran: bool
    start: int

    @property
    def bytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def memory(self) -> int:
        """Memory that reading the array takes: numbers become float32, and text becomes Python objects."""
        if self.dtype.kind in "US":
            return math.prod(self.shape) * self.dtype.itemsize * TEXT_COPIES
        return math.prod(self.shape) * max(self.dtype.itemsize, VALUE_BYTES)


def read_header(file: IO[bytes], records: bool = False) -> ArrayHeader:
    """Return the header of an array in numpy's format, without its values; `records` allows values with fields.

    Raises
    ------
    ValueError
        If it is no header, or one of Python objects, of records or of a size that no disk has.
    """
    from numpy.lib import format

    head = file.read(8)
    version, wide = head[6:], head[6:7] == b"\2"
    if head[:6] != b"\x93NUMPY" or version not in (b"\1\0", b"\2\0"):
        raise ValueError("no array of numpy")
    length = file.read(4 if wide else 2)
    size = int.from_bytes(length, "little")
    if size > HEADER_BYTES:
        raise ValueError("far too long a header")
    text = io.BytesIO(length + file.read(size))
    read = format.read_array_header_2_0 if wide else format.read_array_header_1_0
    shape, fortran, dtype = read(text)
    if dtype.hasobject or (dtype.names and not records) or dtype.subdtype:
        raise ValueError("Python objects or records")
    if any(type(axis) is not int or not 0 <= axis < 2**48 for axis in shape):
        raise ValueError("an impossible shape")
    return ArrayHeader(shape, dtype, fortran, len(head) + len(length) + size)


def read_npz(
    path: Path, needed: Sequence[str], optional: Sequence[str] = (), max_bytes: int = 2**33
) -> dict[str, numpy.ndarray]:
    """Return arrays of an .npz file; nothing is unpickled.

    Parameters
    ----------
    path
        The .npz file.
    needed, optional
        Names of arrays that the file must hold, and of arrays that are read where it holds them.
    max_bytes
        Upper bound on the memory for all arrays; files of at most 100 MB have a lower one.

    Returns
    -------
    dict
        The arrays by name.

    Raises
    ------
    RedxError
        If the file is damaged or too large, lacks a needed array, or holds Python objects.
    """
    advice = "write it anew with numpy.savez"
    with open_file(path, TENSOR_BYTES, advice=advice) as (file, size):
        with guarded(path, "cannot be read as .npz", advice):
            archive = zipfile.ZipFile(file)
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise RedxError(f"{path} holds an array twice; write it anew with numpy.savez.")
        if missing := [name for name in needed if name not in members]:
            available = ", ".join(name if name.isprintable() else ascii(name) for name in list(members)[:20]) or "none"
            raise RedxError(f"{path} has no array '{missing[0]}', only {available}; add it with numpy.savez.")
        names = [name for name in dict.fromkeys((*needed, *optional)) if name in members]
        headers = {name: _member_header(path, archive, name, members[name]) for name in names}
        _check_memory(path, size, headers, max_bytes)
        return {name: _member_values(path, archive, name, members[name]) for name in names}


def _member_header(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> ArrayHeader:
    with _guarded_array(path, name):
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("compressed in a way that numpy does not write")
        with archive.open(member) as stream:
            header = read_header(stream)
        if header.start + header.bytes != member.file_size:
            raise ValueError("its size does not fit its header")
        return header


def _check_memory(path: Path, size: int, headers: dict[str, ArrayHeader], max_bytes: int) -> None:
    """Refuse arrays that take far more memory than their file has bytes: a small archive can hold zeros of any size."""
    memory = sum(header.memory for header in headers.values())
    limit = min(max_bytes, max(SMALL_BYTES, EXPANSION * size))
    if memory > limit:
        raise RedxError(f"{path} unpacks to {memory:,} bytes, more than {limit:,}; give fewer examples or float32.")
    rows = max((header.shape[0] for header in headers.values() if header.shape), default=0)
    if rows > (most := max(SMALL_ROWS, size // ROW_BYTES)):
        raise RedxError(f"{path} has {rows:,} rows, more than {most:,} for a file of its size; give fewer examples.")


def _member_values(path: Path, archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> numpy.ndarray:
    import numpy

    with _guarded_array(path, name), archive.open(member) as stream:
        values = numpy.lib.format.read_array(stream, allow_pickle=False)  # to the end, where the checksum is compared
        if values.dtype.kind == "U":
            points = values.ravel("K").view(f"{values.dtype.byteorder}u4")
            if points.max(initial=0) > sys.maxunicode:
                raise ValueError("no characters")
        return values


def _guarded_array(path: Path, name: str):  # noqa: ANN202 - a context manager
    shown = name if name.isprintable() else ascii(name)
    return guarded(
        f"The array '{shown}' of {path}", "holds Python objects or is damaged", "save plain numbers or text (astype)"
    )


def array_header(path: Path, advice: str = "give another file") -> ArrayHeader:
    """Return the header of an .npy file, after comparing it with the size of the file."""
    with open_file(path, TENSOR_BYTES, advice=advice) as (file, size):
        with guarded(path, "is truncated or no array", advice):
            header = read_header(file, records=True)
        if header.start + header.bytes > size:
            raise RedxError(f"{path} is truncated; {advice}.")
        return header


def map_array(path: Path, mode: str, advice: str) -> numpy.ndarray:
    """Return the values of an .npy file as a memory map.

    Parameters
    ----------
    path
        The file.
    mode
        `r` for an array that cannot be written to, or `c` for one whose changes do not reach the file.
    advice
        What to do about a damaged file.
    """
    import numpy

    header = array_header(path, advice)
    if not header.bytes:
        return numpy.empty(header.shape, header.dtype)
    with guarded(path, "is truncated or no array", advice):
        order = "F" if header.fortran else "C"
        return numpy.memmap(path, header.dtype, mode, header.start, header.shape, order)  # type: ignore[call-overload]
