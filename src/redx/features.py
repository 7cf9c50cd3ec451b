"""The frozen part runs once: features on disk, under a fingerprint of weights and data, read as a memory map."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from redx.errors import RedxError
from redx.fetch import cache

if TYPE_CHECKING:
    from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor], *words: str) -> str:
    """A name for what weights make of data: the hash of all tensors and words."""
    sha = hashlib.sha256("/".join(words).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()[:32]


def remember(name: str, rows: int, make: Callable[[], Iterable[Tensor]]) -> Tensor:
    """The features of this name, (N, D): from the cache, or made batch by batch and kept there."""
    import numpy
    import torch

    path = cache() / "embeddings" / f"{name}.npy"
    if not path.exists():
        try:
            _write(path, rows, make())
        except OSError as error:
            raise RedxError(
                f"Cannot write to {path.parent} ({error.strerror}); free space or set REDX_CACHE to another folder."
            ) from error
    try:
        # copy on write: torch wants writable memory, and nothing written there reaches the file
        return torch.from_numpy(numpy.load(path, mmap_mode="c", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise RedxError(f"{path} is truncated; delete it and repeat the command.") from error


def _write(path: Path, rows: int, batches: Iterable[Tensor]) -> None:
    """Write float32 rows under a temporary name, then rename; plain writes, so that a full disk is noticed."""
    from numpy.lib import format

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        new = Path(scratch, "new.npy")
        with open(new, "wb") as file:
            for index, batch in enumerate(batches):
                if index == 0:
                    shape = (rows, batch.shape[1])
                    format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
                file.write(batch.contiguous().numpy().astype("<f4", copy=False).tobytes())
        new.replace(path)
