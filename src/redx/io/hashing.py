"""Hashes of tensors and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

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


@lru_cache(maxsize=256)
def hash_file(path: Path, size: int, changed: int) -> str:
    """Return the hash of a file, which is computed again only if the file has changed.

    Parameters
    ----------
    path
        The file.
    size, changed
        Its size and its time of modification, which are part of the key under which the hash is cached.

    Returns
    -------
    str
        The BLAKE2b hash, in hexadecimal digits.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
