"""Cached features on disk, by text or as one array per name.

Files appear whole or not at all, so that an interrupted computation keeps what it has finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError
from redx.io.array_files import map_array
from redx.io.cache import cache_folder
from redx.io.files import atomic_path
from redx.io.hashing import CHECKSUMS, ChangedFile, check_checksums, write_checksums
from redx.io.reading import exists, read_json

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

TextRows = Sequence[tuple[str, "Tensor"]]  # texts, each with its rows (T, D)
INDEX_DTYPE = [("key", "S16"), ("start", "<i8"), ("rows", "<i8")]  # per text: its hash, its first row, its row count
INFO_FILE = "about.json"
FLOAT_BYTES = 4
SETTLED = 2 * 10**9  # nanoseconds after which the time of a folder tells it from a later state


class FeatureCache:
    """Features by text: float32 rows of one width, one or more rows per text.

    The rows lie in shards, each a file of rows and a file with the index of its texts. Several processes may read and
    add at the same time.

    Parameters
    ----------
    folder
        Folder of the shards; it is created when the first shard is written.
    width
        Number of features D of a row.
    info
        What computed the features. It is written to `about.json` with the first shard. A folder whose `about.json`
        differs in any entry but the name of the backbone is refused.
    max_shard_bytes, max_shard_texts
        A shard is written before its rows or its texts would exceed these bounds. A single batch is never divided, so a
        large batch can exceed them.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache = FeatureCache(Path(folder.name), width=2)
    >>> cache.add([[("one", torch.ones(1, 2)), ("two", torch.zeros(3, 2))]])
    >>> cache.missing(["two", "three"])
    ['three']
    >>> rows, counts = cache.get(["two", "one"])
    >>> tuple(rows.shape), counts.tolist()
    ((4, 2), [3, 1])
    """

    def __init__(
        self,
        folder: Path,
        width: int,
        info: Mapping[str, Any] | None = None,
        max_shard_bytes: int = 64 * 2**20,
        max_shard_texts: int = 8192,
    ) -> None:
        import numpy

        self.folder, self.width, self.info = folder, width, dict(info or {})
        self.max_shard_bytes, self.max_shard_texts = max_shard_bytes, max_shard_texts
        self._shards: dict[str, numpy.ndarray] = {}  # shard name to its rows, (R, D), memory-mapped
        self._index = numpy.empty(0, INDEX_DTYPE)  # entries of all shards, sorted by key
        self._keys = self._index["key"]
        self._shard_numbers = numpy.empty(0, numpy.int64)  # the shard of each entry of the index
        self._listed: int | None = None  # when the folder was last changed, as it was when its shards were listed
        self._check_info()

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the distinct texts that have no features here, in their order."""
        distinct = list(dict.fromkeys(texts))
        entries = self._find_entries(distinct)
        return [text for text, entry in zip(distinct, entries.tolist(), strict=True) if entry < 0]

    def get(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the features of texts.

        Parameters
        ----------
        texts
            Texts that are all in the cache; they may repeat.

        Returns
        -------
        rows
            The rows of all texts one after the other, (R, D).
        counts
            The number of rows of each text, (N,).

        Raises
        ------
        KeyError
            Where a text has no features here.
        """
        import numpy
        import torch

        entries = self._find_entries(texts)
        if (entries < 0).any():
            raise KeyError(texts[int(entries.argmin())])
        starts, counts = self._index["start"][entries], self._index["rows"][entries]
        shard_numbers = self._shard_numbers[entries]
        targets = counts.cumsum() - counts  # where the rows of each text begin in the result
        rows = numpy.empty((int(counts.sum()), self.width), numpy.float32)
        for number, shard in enumerate(self._shards.values()):
            if (inside := numpy.flatnonzero(shard_numbers == number)).size:
                source = _expand_ranges(starts[inside], counts[inside])
                rows[_expand_ranges(targets[inside], counts[inside])] = shard[source]
        return torch.from_numpy(rows), torch.from_numpy(counts)

    def add(self, batches: Iterable[TextRows]) -> None:
        """Add texts with their rows, and write each shard as soon as it is full.

        Parameters
        ----------
        batches
            Batches of texts with their rows, (T, D). Where the iterable raises an error, the batches before it are
            written.
        """
        pending: list[tuple[str, Tensor]] = []
        pending_bytes = 0
        try:
            for batch in batches:
                batch_bytes = sum(rows.numel() * FLOAT_BYTES for _, rows in batch)
                too_large = pending_bytes + batch_bytes > self.max_shard_bytes
                if pending and (too_large or len(pending) + len(batch) > self.max_shard_texts):
                    full, pending, pending_bytes = pending, [], 0
                    self._write_shard(full)
                pending.extend(batch)
                pending_bytes += batch_bytes
        finally:
            if pending:
                self._write_shard(pending)

    def _write_shard(self, pairs: TextRows) -> None:
        """Write one shard, first its rows and then its index, so that every index on disk has its rows."""
        import numpy
        import torch

        rows = torch.cat([rows.detach().to("cpu", torch.float32) for _, rows in pairs]).numpy()  # (R, D)
        if rows.shape[1:] != (self.width,):
            raise RedxError(f"Rows of shape {rows.shape} do not fit {self.folder}, which has {self.width} features.")
        index = numpy.empty(len(pairs), INDEX_DTYPE)
        index["key"] = _hash_texts([text for text, _ in pairs])
        index["rows"] = [len(rows) for _, rows in pairs]
        index["start"] = index["rows"].cumsum() - index["rows"]
        name = uuid.uuid4().hex
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".") as scratch:
                about = json.dumps(self.info, indent=2).encode()
                is_new = self.info and not (self.folder / INFO_FILE).exists()
                files = ({INFO_FILE: about} if is_new else {}) | {f"{name}.npy": rows, f"{name}.index.npy": index}
                for file_name, content in files.items():
                    with open(Path(scratch, file_name), "wb") as file:
                        if isinstance(content, bytes):
                            file.write(content)
                        else:
                            numpy.save(file, content, allow_pickle=False)
                        file.flush()
                        os.fsync(file.fileno())
                write_checksums(Path(scratch, f"{name}{CHECKSUMS}"), [Path(scratch, file_name) for file_name in files])
                for file_name in (f"{name}{CHECKSUMS}", *files):  # the index last: with it the shard counts
                    os.replace(Path(scratch, file_name), self.folder / file_name)
        except (OSError, RedxError) as error:  # the latter from `write_checksums`, which names a temporary file
            for unused in (f"{name}.npy", f"{name}{CHECKSUMS}"):
                with suppress(OSError):
                    (self.folder / unused).unlink()
            raise _cannot_write(self.folder, error.__cause__ or error) from error

    def _find_entries(self, texts: Sequence[str]) -> numpy.ndarray:
        """Return the entry of each text in the index, (N,); -1 where it has none."""
        import numpy

        self._read_new_shards()
        keys = _hash_texts(texts)
        if not len(self._index):
            return numpy.full(len(keys), -1)
        entries = numpy.minimum(self._keys.searchsorted(keys), len(self._index) - 1)
        return numpy.where(self._keys[entries] == keys, entries, -1)

    def _read_new_shards(self) -> None:
        """Read the index of every shard that this or another process has added since the last call."""
        import numpy

        try:
            changed = os.stat(self.folder).st_mtime_ns
        except FileNotFoundError:
            changed = None
        if changed is not None and changed == self._listed and time.time_ns() - changed > SETTLED:
            return
        self._listed = changed
        on_disk = {path.name.removesuffix(".index.npy") for path in self.folder.glob("*.index.npy")}
        new_names = sorted(on_disk - {*self._shards})
        if not new_names:
            return
        indices, numbers = [self._index], [self._shard_numbers]
        for name in new_names:
            index, rows = self._open_shard(name)
            indices.append(index)
            numbers.append(numpy.full(len(index), len(self._shards)))
            self._shards[name] = rows
        index = numpy.concatenate(indices)
        order = index["key"].argsort(kind="stable")  # of equal keys, the one that was read first stays first
        self._index, self._shard_numbers = index[order], numpy.concatenate(numbers)[order]
        self._keys = numpy.ascontiguousarray(self._index["key"])

    def _open_shard(self, name: str) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the index of a shard and its memory-mapped rows."""
        import numpy

        path, index_path = self.folder / f"{name}.npy", self.folder / f"{name}.index.npy"
        try:
            index = numpy.array(map_array(index_path, "r", ""))
            rows = map_array(path, "r", "")
            check_checksums(self.folder / f"{name}{CHECKSUMS}", [path, index_path])
        except ChangedFile as error:
            raise self._unusable(str(error)) from error
        except (RedxError, OSError) as error:
            raise self._unusable(f"{path} is truncated") from error
        if index.dtype != numpy.dtype(INDEX_DTYPE) or index.ndim != 1 or rows.dtype != numpy.float32 or rows.ndim != 2:
            raise self._unusable(f"{path} does not hold features")
        if rows.shape[1] != self.width:
            raise self._unusable(f"{path} has {rows.shape[1]} features a row where {self.width} are expected")
        ends = index["start"] + index["rows"]
        if len(index) and (index["start"].min() < 0 or index["rows"].min() < 1 or ends.max() > len(rows)):
            raise self._unusable(f"{path} does not fit its index")
        return index, rows

    def _check_info(self) -> None:
        """Refuse a folder whose features were computed by something else."""
        path = self.folder / INFO_FILE
        if not self.info or not exists(path):
            return
        try:
            written = read_json(path, dict)
            different = [key for key in self.info if key != "backbone" and written[key] != self.info[key]]
        except (RedxError, KeyError) as error:
            raise self._unusable(f"{path} is damaged") from error
        if different:
            raise self._unusable(f"{self.folder} was written by another backbone ({', '.join(different)} differ)")

    def _unusable(self, problem: str) -> RedxError:
        return RedxError(f"{problem}; clear all features with `redx cache clear`, then repeat.")


def _hash_texts(texts: Sequence[str]) -> numpy.ndarray:
    """Return a hash of each text, (N,), as 16 bytes."""
    import numpy

    return numpy.array([hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts], "S16")


def _expand_ranges(starts: numpy.ndarray, counts: numpy.ndarray) -> numpy.ndarray:
    """Return `starts[i], starts[i] + 1, …, starts[i] + counts[i] - 1` for every i, one after the other."""
    import numpy

    before = counts.cumsum() - counts
    return numpy.repeat(starts - before, counts) + numpy.arange(counts.sum())


def cached_rows(name: str, rows: int, compute: Callable[[], Iterable[Tensor]]) -> Tensor:
    """Return the features that are cached under a name; compute and cache them on the first call.

    Parameters
    ----------
    name
        Name of the file in the cache; it must change whenever the features would.
    rows
        Number of rows N.
    compute
        Returns the features in batches, (B, D) each.

    Returns
    -------
    Tensor
        The features, (N, D), as a memory map; writing to them does not change the file.
    """
    import numpy
    import torch

    path = cache_folder() / "embeddings" / f"{name}.npy"
    if not exists(path):
        try:
            _write_rows(path, rows, compute())
        except OSError as error:
            raise _cannot_write(path.parent, error) from error
    advice = "clear all features with `redx cache clear`, then repeat"
    array = map_array(path, "c", advice)  # copy on write: torch requires writable memory; the file stays as it is
    if array.dtype != numpy.float32 or array.ndim != 2 or len(array) != rows:
        raise RedxError(f"{path} does not hold {rows} rows of features; {advice}.")
    try:
        check_checksums(path.with_suffix(CHECKSUMS), [path])
    except ChangedFile as error:
        raise RedxError(f"{error}; {advice}.") from error
    return torch.from_numpy(array)


def _write_rows(path: Path, rows: int, batches: Iterable[Tensor]) -> None:
    """Write float32 rows to a temporary file and rename it; plain writes, so that a full disk raises an error."""
    from numpy.lib import format

    with atomic_path(path) as temporary:
        with open(temporary, "wb") as file:
            for number, batch in enumerate(batches):
                if number == 0:
                    shape = (rows, batch.shape[1])
                    format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
                file.write(batch.contiguous().numpy().astype("<f4", copy=False).tobytes())
        write_checksums(path.with_suffix(CHECKSUMS), [temporary], [path.name])


def _cannot_write(folder: Path, error: BaseException) -> RedxError:
    reason = getattr(error, "strerror", None) or error
    return RedxError(f"Cannot write to {folder} ({reason}); free space or set REDX_CACHE to another folder.")
