"""Safetensors files, whose headers are checked before the library or PyTorch sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError
from redx.io.reading import REPEAT, TENSOR_BYTES, guarded, open_file, parse_json

if TYPE_CHECKING:
    from torch import Tensor

HEADER_BYTES = 64 * 2**20  # of one file
MAX_TENSORS = 100_000
MAX_AXES = 16
# types that the files of redx have, and further ones that language models have, with their bits
DTYPES = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
OTHER_DTYPES = {"U16": 16, "U32": 32, "U64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "C64": 64}


@dataclass(frozen=True)
class SafetensorsFile:
    """An open safetensors file.

    Attributes
    ----------
    header
        Type, as the file writes it, and shape of every tensor by name.
    metadata
        Texts by name.
    get
        Reads a tensor by name.
    """

    header: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str]
    get: Callable[[str], Tensor]


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor's values in bytes."""
    return math.ceil(math.prod(shape) * (DTYPES | OTHER_DTYPES)[dtype] / 8)


@contextmanager
def open_safetensors(
    path: Path,
    problem: str = "is truncated or not a safetensors file",
    advice: str = REPEAT,
    missing: str = "",
    strict: bool = False,
) -> Iterator[SafetensorsFile]:
    """Open a safetensors file inside a `with` block; values are read from disk when they are needed.

    Parameters
    ----------
    path
        The file.
    problem, advice, missing
        What is wrong with a damaged file, what to do about it, and what to do if there is no such file.
    strict
        Whether only the types of tensors are accepted that the files of redx have.

    Yields
    ------
    SafetensorsFile
        Header, metadata, and a function that reads a tensor.

    Raises
    ------
    RedxError
        If the file is damaged.
    """
    from safetensors import safe_open

    header, metadata = _read_header(path, problem, advice, missing, strict)
    with guarded(path, problem, advice):
        file = safe_open(path, "pt").__enter__()

    def get(name: str) -> Tensor:
        with guarded(path, problem, advice):
            tensor = file.get_tensor(name)
            if tuple(tensor.shape) != header[name][1]:
                raise ValueError("the file was changed meanwhile")
            return tensor

    try:
        yield SafetensorsFile(header, metadata, get)
    finally:
        file.__exit__(None, None, None)


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file of redx by name; with a prefix only those under `PREFIX.`.

    Raises
    ------
    RedxError
        If the file does not exist or is damaged.
    """
    with open_safetensors(path, missing="repeat the `redx run` that writes it", strict=True) as file:
        start = f"{prefix}." if prefix else ""
        return {name: file.get(name).clone() for name in file.header if name.startswith(start)}


def _read_header(
    path: Path, problem: str, advice: str, missing: str, strict: bool
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, str]]:
    """Return types and shapes by name, and the metadata, after checking all of them against the size of the file."""
    with open_file(path, TENSOR_BYTES, missing, advice) as (file, size), guarded(path, problem, advice):
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_BYTES, size - 8):
            raise ValueError("no header")
        content = parse_json(file.read(length).decode())
        metadata = content.pop("__metadata__", {})
        if len(content) > MAX_TENSORS or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("no header")
        header = {name: _read_entry(path, name, entry, size - 8 - length) for name, entry in content.items()}
        if strict and (odd := [name for name, (dtype, _) in header.items() if dtype not in DTYPES]):
            raise RedxError(
                f"{path} holds {odd[0][:80]!a} as {header[odd[0]][0]}, a type of tensor that redx does not use; "
                f"{advice}."
            )
        return header, metadata


def _read_entry(path: Path, name: str, entry: Any, data: int) -> tuple[str, tuple[int, ...]]:
    dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, start, end]
    if any(type(number) is not int or not 0 <= number < 2**48 for number in numbers) or len(shape) > MAX_AXES:
        raise ValueError("impossible sizes")
    if dtype not in DTYPES and dtype not in OTHER_DTYPES:
        raise RedxError(f"{path} holds {name[:80]!a} as {str(dtype)[:20]!a}, which is no type of tensor; copy it anew.")
    if end > data or end - start != tensor_bytes(dtype, tuple(shape)):
        raise ValueError("truncated")
    return dtype, tuple(shape)
