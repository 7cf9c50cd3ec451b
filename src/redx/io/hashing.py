"""Hashes of tensors and files, and checksums beside files, by which a file that was changed afterwards is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.files import write_bytes
from redx.io.reading import TENSOR_BYTES, exists, open_file, read_json

if TYPE_CHECKING:
    from torch import Tensor

MARKED_BYTES = 2**20  # checksums of files from this size on are kept in the cache between processes
SETTLED = 2 * 10**9  # nanoseconds after which the times of a file tell it from a later state
CHECKSUMS = ".sums.json"  # how the name of a file of checksums ends


def hash_tensors(tensors: Mapping[str, Tensor], *words: str) -> str:
    """Return a hash of named tensors and words.

    Parameters
    ----------
    tensors
        Tensors by name; names, shapes, types and values all change the hash, their order does not.
    words
        Further texts that change the hash.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    sha = hashlib.sha256("/".join(words).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()[:32]


def checksum(path: Path) -> str:
    """Return the checksum of a file, which is computed again only if the file has changed since.

    The checksums of large files are kept in the cache, with the state of the file (size, times, inode).

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    str
        The BLAKE2b hash, in hexadecimal digits.
    """
    state = path.stat()
    return _hash_file(path, state.st_size, state.st_mtime_ns, state.st_ino)


@lru_cache(maxsize=4096)
def _hash_file(path: Path, size: int, changed: int, inode: int) -> str:
    """Return the hash of a file; size, time of modification and inode only tell whether it has changed."""
    marker = None if size < MARKED_BYTES else _marker(path)
    if marker is not None and (known := _read_marker(marker, path)):
        return known
    before = _state(path)
    with open_file(path, TENSOR_BYTES) as (file, _):
        digest = hashlib.file_digest(file, "blake2b").hexdigest()  # type: ignore[arg-type]
    is_settled = time.time_ns() - max(before[1:3]) > SETTLED  # otherwise a later write could have the same time
    if marker is not None and is_settled and _state(path) == before:
        with suppress(OSError, RedxError):  # a cache that cannot be written to
            write_bytes(marker, json.dumps({"state": before, "checksum": digest}).encode())
    return digest


def _marker(path: Path) -> Path:
    """Return the file in the cache that keeps the checksum of a large file between processes."""
    name = hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=16).hexdigest()
    return cache_folder() / "checksums" / f"{name}.json"


def _read_marker(marker: Path, path: Path) -> str | None:
    """Return the checksum that was computed for this state of a file, if it is known."""
    try:
        known = read_json(marker, dict) if exists(marker) else {}
        return str(known["checksum"]) if known and known["state"] == _state(path) else None
    except (RedxError, KeyError):
        return None


def _state(path: Path) -> list[int]:
    """Return what changes whenever a file is written: the time of its last change cannot be set by a program."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


# --- checksums beside files


class ChangedFile(Exception):
    """A file has another checksum than the one that was written beside it."""


def write_checksums(path: Path, files: Sequence[Path], names: Sequence[str] = ()) -> None:
    """Write the checksums of files to a file of their own, completely or not at all.

    Parameters
    ----------
    path
        The file of checksums.
    files
        The files.
    names
        The names that they are going to have, if other than now.
    """
    sums = {name: checksum(file) for name, file in zip(names or [file.name for file in files], files, strict=True)}
    write_bytes(path, json.dumps(sums).encode())


def check_checksums(path: Path, files: Sequence[Path]) -> None:
    """Compare files with their checksums; once per process for each state of a file.

    A cache of an older version has no checksums: they are added where the folder can be written to.

    Raises
    ------
    ChangedFile
        If a file, or the file of checksums, is not what was written.
    """
    if not exists(path):
        with suppress(OSError, RedxError):
            write_checksums(path, files)
        return
    try:
        sums = read_json(path, dict[str, str])
    except RedxError as error:
        raise ChangedFile(f"{path} is damaged") from error
    for file in files:
        if sums.get(file.name) != checksum(file):
            raise ChangedFile(f"{file} was changed after it was written (its checksum differs)")
