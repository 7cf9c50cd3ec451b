"""The cache folder of the user: its location, its entries, and how to clear it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from redx.errors import RedxError

FOLDERS = {  # by kind
    "mnist": "mnist",
    "intents": "clinc150",
    "backbone": "backbones",
    "features": "features",
    "embeddings": "embeddings",
    "texts": "texts",
    "checksums": "checksums",
    "hub": "hub",
}
WHOLE = ("mnist", "intents", "embeddings", "texts", "checksums")  # kinds that are listed as one entry


def cache_folder() -> Path:
    """Return the cache folder; it need not exist.

    Returns
    -------
    Path
        `$REDX_CACHE` if it is set, otherwise the cache folder of the operating system: on Linux
        `$XDG_CACHE_HOME/redx` or `~/.cache/redx`.

    Raises
    ------
    RedxError
        If the user has no home folder and REDX_CACHE is not set.
    """
    try:
        return Path(os.environ.get("REDX_CACHE") or user_cache_path("redx", appauthor=False)).expanduser()
    except RuntimeError as error:
        raise RedxError("There is no home folder for downloads; set REDX_CACHE to a folder.") from error


def cache_entries() -> list[dict[str, Any]]:
    """Return the entries of the cache.

    Returns
    -------
    list of dict
        One record per entry: its `name`, its `kind`, the number of `bytes` and the number of `files`.
    """
    records = []
    for kind, name in FOLDERS.items():
        folder = cache_folder() / name
        single = os.path.lexists(folder) and (kind in WHOLE or folder.is_symlink())
        for entry in [folder] if single else _entries(folder):
            sizes = _sizes(entry)
            records.append({"name": entry.name, "kind": kind, "bytes": sum(sizes), "files": len(sizes)})
    return records


def clear_cache(kind: str | None = None) -> int:
    """Delete the entries of the cache; symbolic links are deleted and not followed.

    Parameters
    ----------
    kind
        A key of `FOLDERS`; None for all kinds.

    Returns
    -------
    int
        The number of bytes that were deleted.
    """
    if kind is not None and kind not in FOLDERS:
        raise RedxError(f"The cache has no kind {kind!r}; choose one of {', '.join(FOLDERS)}.")
    freed = 0
    for name in [FOLDERS[kind]] if kind else FOLDERS.values():
        for entry in _entries(cache_folder() / name):
            size = sum(_sizes(entry))
            try:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            except OSError as error:
                raise RedxError(f"Cannot delete {entry} ({error.strerror}); fix its permissions.") from error
            freed += size
    return freed


def _entries(folder: Path) -> list[Path]:
    if folder.is_symlink():
        raise RedxError(f"{folder} is a link, which redx does not follow here; move it away.")
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _sizes(entry: Path) -> list[int]:
    """Return the sizes in bytes of all files of an entry; a link has its own size, not that of its target."""
    return [path.lstat().st_size for path in _files(entry)]


def _files(entry: Path) -> Iterator[Path]:
    if entry.is_symlink() or not entry.is_dir():
        yield entry
        return
    for parent, folders, files in os.walk(entry):
        yield from (Path(parent, name) for name in files)
        yield from (link for name in folders if (link := Path(parent, name)).is_symlink())
