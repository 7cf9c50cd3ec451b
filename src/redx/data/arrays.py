"""The user's own arrays from .npz files, with every fault reported by its array and row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redx.data.tables import faulty_rows, required_value, to_name
from redx.errors import RedxError
from redx.io.array_files import read_npz
from redx.io.reading import guarded, is_file

if TYPE_CHECKING:
    import numpy


def read_arrays(
    path: Path, needed: Sequence[str], optional: Sequence[str], max_bytes: int = 2**33
) -> dict[str, numpy.ndarray]:
    """Return arrays of a user's .npz file; the parameters and errors are those of `redx.io.array_files.read_npz`.

    Examples
    --------
    >>> import numpy, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "examples.npz")
    >>> numpy.savez(path, x=numpy.zeros((3, 2)), y=numpy.array(["a", "b", "a"]))
    >>> read_arrays(path, ["x", "y"], ["domain"])["x"].shape
    (3, 2)
    """
    if path.suffix.lower() != ".npz":
        raise RedxError(f"{path} is no .npz file; write one with numpy.savez and the arrays {' and '.join(needed)}.")
    if not is_file(path):
        raise RedxError(f"There is no file {path}; give the path of an .npz file with --data FILE.")
    return read_npz(path, needed, optional, max_bytes)


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
    with guarded(f"The array '{name}' of {path}", "holds values out of range", "save plain numbers or text (astype)"):
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
