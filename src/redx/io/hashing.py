"""Hashes of tensors and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from redx.io.reading import TENSOR_BYTES, open_file

if TYPE_CHECKING:
    from torch import Tensor


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
    with open_file(path, TENSOR_BYTES) as (file, _):
        return hashlib.file_digest(file, "blake2b").hexdigest()  # type: ignore[arg-type]
