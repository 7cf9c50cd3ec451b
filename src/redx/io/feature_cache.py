"""Features by text on disk: shards that are whole or absent, so that a killed encoding keeps what it had."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError
from redx.io.cache import cache_folder

if TYPE_CHECKING:
    import numpy
    from torch import Tensor


TextRows = Sequence[tuple[str, "Tensor"]]  # texts, each with its rows (T, D)


SHARD_BYTES, SHARD_TEXTS = 64 * 2**20, 8192  # of one shard


INDEX = [("key", "S16"), ("start", "<i8"), ("rows", "<i8")]  # one entry a text: its hash, and its rows in the shard


ABOUT = "about.json"


class FeatureCache:
    """Float32 rows of one width, one or more for each text; any number of processes may read and add at once."""

    def __init__(self, folder: Path, width: int, about: Mapping[str, Any] | None = None) -> None:
        """`about` says in plain facts whose features these are; all but the name of the backbone must fit."""
        import numpy

        self.folder, self.width, self.about = folder, width, dict(about or {})
        self._shards: dict[str, numpy.ndarray] = {}  # name to rows, (R, D), memory-mapped
        self._index = numpy.empty(0, INDEX)  # sorted by key
        self._shard = numpy.empty(0, numpy.int64)  # for each entry, which shard it is in
        self._check_about()

    def missing(self, texts: Iterable[str]) -> list[str]:
        """The distinct texts that are not here, in their order."""
        distinct = list(dict.fromkeys(texts))
        at = self._find(distinct)
        return [text for text, place in zip(distinct, at.tolist(), strict=True) if place < 0]

    def get(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The rows of all texts one after the other, (R, D), and how many each text has, (N,)."""
        import numpy
        import torch

        at = self._find(texts)
        if (at < 0).any():
            raise KeyError(texts[int(at.argmin())])
        starts, counts, shard = self._index["start"][at], self._index["rows"][at], self._shard[at]
        targets = counts.cumsum() - counts
        rows = numpy.empty((int(counts.sum()), self.width), numpy.float32)
        for number, data in enumerate(self._shards.values()):
            if (mine := numpy.flatnonzero(shard == number)).size:
                rows[_spread(targets[mine], counts[mine])] = data[_spread(starts[mine], counts[mine])]
        return torch.from_numpy(rows), torch.from_numpy(counts)

    def add(self, batches: Iterable[TextRows]) -> None:
        """Write shards as they fill up; a batch is never torn, and when something breaks, whole batches are kept."""
        pile: list[tuple[str, Tensor]] = []
        size = 0
        try:
            for batch in batches:
                new = sum(rows.numel() * 4 for _, rows in batch)
                if pile and (size + new > SHARD_BYTES or len(pile) + len(batch) > SHARD_TEXTS):
                    full, pile, size = pile, [], 0
                    self._write(full)
                pile.extend(batch)
                size += new
        finally:
            if pile:
                self._write(pile)

    def _write(self, pairs: TextRows) -> None:
        """One shard: the rows first, their index last, so that an index always finds its rows."""
        import numpy
        import torch

        rows = torch.cat([rows.detach().to("cpu", torch.float32) for _, rows in pairs]).numpy()  # (R, D)
        if rows.shape[1:] != (self.width,):
            raise RedxError(f"Rows of shape {rows.shape} do not fit {self.folder}, which has {self.width} features.")
        index = numpy.empty(len(pairs), INDEX)
        index["key"] = _keys([text for text, _ in pairs])
        index["rows"] = [len(rows) for _, rows in pairs]
        index["start"] = index["rows"].cumsum() - index["rows"]
        name = uuid.uuid4().hex
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".") as scratch:
                if self.about and not (self.folder / ABOUT).exists():
                    Path(scratch, ABOUT).write_text(json.dumps(self.about, indent=2))
                    os.replace(Path(scratch, ABOUT), self.folder / ABOUT)
                for file, array in ((f"{name}.npy", rows), (f"{name}.index.npy", index)):
                    with open(Path(scratch, file), "wb") as target:
                        numpy.save(target, array, allow_pickle=False)
                        target.flush()
                        os.fsync(target.fileno())
                for file in (f"{name}.npy", f"{name}.index.npy"):
                    os.replace(Path(scratch, file), self.folder / file)
        except OSError as error:
            with suppress(OSError):
                (self.folder / f"{name}.npy").unlink()
            why = error.strerror or error
            raise RedxError(
                f"Cannot write to {self.folder} ({why}); free space or set REDX_CACHE to another folder."
            ) from error

    def _find(self, texts: Sequence[str]) -> numpy.ndarray:
        """Where each text stands in the index, (N,); -1 where it does not."""
        import numpy

        self._refresh()
        keys = _keys(texts)
        if not len(self._index):
            return numpy.full(len(keys), -1)
        at = self._index["key"].searchsorted(keys).clip(max=len(self._index) - 1)
        return numpy.where(self._index["key"][at] == keys, at, -1)

    def _refresh(self) -> None:
        """Take in the shards that were added since, by whomever."""
        import numpy

        new = sorted(
            {path.name.removesuffix(".index.npy") for path in self.folder.glob("*.index.npy")} - {*self._shards}
        )
        if not new:
            return
        found, shard = [self._index], [self._shard]
        for name in new:
            index, rows = self._open(name)
            found.append(index)
            shard.append(numpy.full(len(index), len(self._shards)))
            self._shards[name] = rows
        whole = numpy.concatenate(found)
        order = whole["key"].argsort(kind="stable")  # of two that are equal, what was read before stays the first
        self._index, self._shard = whole[order], numpy.concatenate(shard)[order]

    def _open(self, name: str) -> tuple[numpy.ndarray, numpy.ndarray]:
        """The index of a shard and its memory-mapped rows."""
        import numpy

        path = self.folder / f"{name}.npy"
        try:
            index = numpy.load(self.folder / f"{name}.index.npy", allow_pickle=False)
            rows = numpy.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(f"{path} is truncated") from error
        if index.dtype != numpy.dtype(INDEX) or index.ndim != 1 or rows.dtype != numpy.float32 or rows.ndim != 2:
            raise self._damaged(f"{path} holds something else than features")
        if rows.shape[1] != self.width:
            raise self._damaged(f"{path} has {rows.shape[1]} features a row where {self.width} are expected")
        ends = index["start"] + index["rows"]
        if len(index) and (index["start"].min() < 0 or index["rows"].min() < 1 or ends.max() > len(rows)):
            raise self._damaged(f"{path} does not fit its index")
        return index, rows

    def _check_about(self) -> None:
        """Refuse features that something else than what is asked for has made."""
        path = self.folder / ABOUT
        if not self.about or not path.exists():
            return
        try:
            found = json.loads(path.read_text())
            unlike = [key for key in self.about if key != "backbone" and found[key] != self.about[key]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"{path} is damaged") from error
        if unlike:
            raise self._damaged(f"{self.folder} was written by another backbone ({', '.join(unlike)} differ)")

    def _damaged(self, what: str) -> RedxError:
        return RedxError(f"{what}; delete {self.folder} or all features with `redx cache clear`, then repeat.")


def _keys(texts: Sequence[str]) -> numpy.ndarray:
    """The texts' hashes, (N,)."""
    import numpy

    return numpy.array([hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts], "S16")


def _spread(starts: numpy.ndarray, counts: numpy.ndarray) -> numpy.ndarray:
    """All numbers of the ranges that start there and have so many."""
    import numpy

    before = counts.cumsum() - counts
    return numpy.repeat(starts - before, counts) + numpy.arange(counts.sum())


def cached_rows(name: str, rows: int, make: Callable[[], Iterable[Tensor]]) -> Tensor:
    """The features of this name, (N, D): from the cache, or made batch by batch and kept there."""
    import numpy
    import torch

    path = cache_folder() / "embeddings" / f"{name}.npy"
    if not path.exists():
        try:
            _write_rows(path, rows, make())
        except OSError as error:
            raise RedxError(
                f"Cannot write to {path.parent} ({error.strerror}); free space or set REDX_CACHE to another folder."
            ) from error
    try:
        # copy on write: torch wants writable memory, and nothing written there reaches the file
        return torch.from_numpy(numpy.load(path, mmap_mode="c", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise RedxError(f"{path} is truncated; delete it and repeat the command.") from error


def _write_rows(path: Path, rows: int, batches: Iterable[Tensor]) -> None:
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
