"""A user's own files: rows of JSONL, CSV and Parquet, and arrays of .npz, with every fault named by its line or row."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redx.data.tables import faulty_rows, required_value, to_name
from redx.errors import RedxError

if TYPE_CHECKING:
    import numpy


MAX_UNPACKED = 2**33  # bytes of arrays that are read into memory at once: small archives can hold any number of them


def read_arrays(path: Path, needed: Sequence[str], optional: Sequence[str]) -> dict[str, numpy.ndarray]:
    """Arrays of an .npz file by name; nothing is unpickled."""
    import numpy

    if path.suffix.lower() != ".npz":
        raise RedxError(f"{path} is no .npz file; write one with numpy.savez and the arrays {' and '.join(needed)}.")
    if not path.is_file():
        raise RedxError(f"There is no file {path}; give the path of an .npz file with --data FILE.")
    found: dict[str, numpy.ndarray] = {}
    array = ""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_UNPACKED:
            raise RedxError(
                f"{path} unpacks to {size:,} bytes, more than {MAX_UNPACKED:,}; give fewer examples or float32."
            )
        with numpy.load(path, allow_pickle=False) as file:
            if lacking := [array for array in needed if array not in file.files]:
                has = ", ".join(file.files) or "none"
                raise RedxError(f"{path} has no array '{lacking[0]}', only {has}; add it with numpy.savez.")
            for array in (*needed, *optional):
                if array in file.files:
                    found[array] = file[array]
    except ValueError as error:  # what numpy says where it would have to unpickle
        raise RedxError(
            f"The array '{array}' of {path} holds Python objects or is damaged; save plain numbers or text (astype)."
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise RedxError(f"{path} cannot be read as .npz; write it anew with numpy.savez.") from error
    return found


def to_matrix(path: Path, name: str, array: numpy.ndarray) -> numpy.ndarray:
    """Features as float32, (N, D); NaN, infinity and other shapes are refused."""
    import numpy

    if array.ndim != 2 or not array.size:
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give one row of features an example.")
    if array.dtype.kind not in "fiub":
        raise RedxError(f"The array '{name}' of {path} holds {array.dtype}, not real numbers; convert it (astype).")
    with numpy.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused below
        numbers = array.astype(numpy.float32)
    if wrong := numpy.flatnonzero(~numpy.isfinite(numbers).all(1)).tolist():
        raise faulty_rows(path, "Row", {row + 1: f"has NaN or infinity in '{name}'" for row in wrong})
    return numbers


def to_column(path: Path, name: str, array: numpy.ndarray, rows: int) -> list[str]:
    """Labels, domains or splits as text, one an example."""
    if array.shape != (rows,):
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give ({rows},), one value a row.")
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.tolist()]
    found: list[str] = []
    faults: dict[int, str] = {}
    for number, value in enumerate(values, 1):
        try:
            found.append(to_name(required_value({name: value}, name), name))
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        raise faulty_rows(path, "Row", faults)
    return found
