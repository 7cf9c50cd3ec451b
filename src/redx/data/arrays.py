"""The user's own arrays from .npz files, with every fault reported by its array and row."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redx.data.tables import faulty_rows, required_value, to_name
from redx.errors import RedxError

if TYPE_CHECKING:
    import numpy


def read_arrays(
    path: Path, needed: Sequence[str], optional: Sequence[str], max_bytes: int = 2**33
) -> dict[str, numpy.ndarray]:
    """Read arrays from an .npz file without unpickling anything.

    Parameters
    ----------
    path
        The .npz file.
    needed
        Names of arrays that the file must hold.
    optional
        Names of arrays that are read where the file holds them.
    max_bytes
        Upper bound on the uncompressed size of the file, since a small archive can hold arrays of any size.

    Returns
    -------
    dict
        The arrays by name.

    Raises
    ------
    RedxError
        Where the file is missing, damaged or too large, lacks a needed array, or holds Python objects.

    Examples
    --------
    >>> import numpy, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "examples.npz")
    >>> numpy.savez(path, x=numpy.zeros((3, 2)), y=numpy.array(["a", "b", "a"]))
    >>> read_arrays(path, ["x", "y"], ["domain"])["x"].shape
    (3, 2)
    """
    import numpy

    if path.suffix.lower() != ".npz":
        raise RedxError(f"{path} is no .npz file; write one with numpy.savez and the arrays {' and '.join(needed)}.")
    if not path.is_file():
        raise RedxError(f"There is no file {path}; give the path of an .npz file with --data FILE.")
    arrays: dict[str, numpy.ndarray] = {}
    name = ""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max_bytes:
            raise RedxError(
                f"{path} unpacks to {size:,} bytes, more than {max_bytes:,}; give fewer examples or float32."
            )
        with numpy.load(path, allow_pickle=False) as file:
            if missing := [name for name in needed if name not in file.files]:
                available = ", ".join(file.files) or "none"
                raise RedxError(f"{path} has no array '{missing[0]}', only {available}; add it with numpy.savez.")
            for name in (*needed, *optional):
                if name in file.files:
                    arrays[name] = file[name]
    except ValueError as error:  # numpy raises it for arrays that it would have to unpickle
        raise RedxError(
            f"The array '{name}' of {path} holds Python objects or is damaged; save plain numbers or text (astype)."
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise RedxError(f"{path} cannot be read as .npz; write it anew with numpy.savez.") from error
    return arrays


def to_matrix(path: Path, name: str, array: numpy.ndarray) -> numpy.ndarray:
    """Return features as float32.

    Parameters
    ----------
    path, name
        The file and the name of the array, for error messages.
    array
        Real numbers of shape (N, D).

    Returns
    -------
    numpy.ndarray
        The same numbers as float32, (N, D).

    Raises
    ------
    RedxError
        Where the array has another shape or type, or holds NaN, infinity or values too large for float32.
    """
    import numpy

    if array.ndim != 2 or not array.size:
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give one row of features an example.")
    if array.dtype.kind not in "fiub":
        raise RedxError(f"The array '{name}' of {path} holds {array.dtype}, not real numbers; convert it (astype).")
    with numpy.errstate(over="ignore"):  # values too large for float32 become infinite, which is refused below
        matrix = array.astype(numpy.float32)
    if faulty := numpy.flatnonzero(~numpy.isfinite(matrix).all(1)).tolist():
        raise faulty_rows(path, "Row", {row + 1: f"has NaN or infinity in '{name}'" for row in faulty})
    return matrix


def to_column(path: Path, name: str, array: numpy.ndarray, rows: int) -> list[str]:
    """Return labels, domains or splits as text.

    Parameters
    ----------
    path, name
        The file and the name of the array, for error messages.
    array
        Text or numbers of shape (N,).
    rows
        The number of examples N.

    Returns
    -------
    list of str
        One name per example; whole numbers are written without a fraction.

    Raises
    ------
    RedxError
        Where the array has another shape, or a value is missing or neither text nor a number.
    """
    if array.shape != (rows,):
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give ({rows},), one value a row.")
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.tolist()]
    names: list[str] = []
    faults: dict[int, str] = {}
    for number, value in enumerate(values, 1):
        try:
            names.append(to_name(required_value({name: value}, name), name))
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        raise faulty_rows(path, "Row", faults)
    return names
