"""The frozen part runs once: features on disk, under a fingerprint of weights and data, read as a memory map."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def hash_tensors(tensors: Mapping[str, Tensor], *words: str) -> str:
    """A name for what weights make of data: the hash of all tensors and words."""
    sha = hashlib.sha256("/".join(words).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()[:32]


@lru_cache(maxsize=256)
def hash_file(path: Path, size: int, changed: int) -> str:
    """The hash of a file, remembered while its size and its time of change stay the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
