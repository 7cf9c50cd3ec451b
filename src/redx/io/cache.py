"""What lies in the user's cache, and how to be rid of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redx.errors import RedxError

FOLDERS = {"mnist": "mnist", "backbone": "backbones", "features": "features", "embeddings": "embeddings"}  # by kind


WHOLE = ("mnist", "embeddings")  # kinds that are told of as one entry


def cache_entries() -> list[dict[str, Any]]:
    """One record an entry: its name, its kind, its bytes, its files."""
    found = []
    for kind, name in FOLDERS.items():
        folder = cache_folder() / name
        single = os.path.lexists(folder) and (kind in WHOLE or folder.is_symlink())
        for entry in [folder] if single else _entries(folder):
            sizes = _sizes(entry)
            found.append({"name": entry.name, "kind": kind, "bytes": sum(sizes), "files": len(sizes)})
    return found


def clear_cache(kind: str | None = None) -> int:
    """Remove everything of one kind, or of every kind, and tell how many bytes that freed; links are not followed."""
    if kind is not None and kind not in FOLDERS:
        raise RedxError(f"The cache has no kind {kind!r}; choose one of {', '.join(FOLDERS)}.")
    freed = 0
    for name in [FOLDERS[kind]] if kind else FOLDERS.values():
        for entry in _entries(cache_folder() / name):
            size = sum(_sizes(entry))
            try:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            except OSError as error:
                raise RedxError(f"Cannot delete {entry} ({error.strerror}); delete it by hand.") from error
            freed += size
    return freed


def _entries(folder: Path) -> list[Path]:
    if folder.is_symlink():
        raise RedxError(f"{folder} is a link, which redx does not follow here; look after what it points to by hand.")
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _sizes(entry: Path) -> list[int]:
    """The bytes of every file below; a link counts as itself."""
    return [path.lstat().st_size for path in _files(entry)]


def _files(entry: Path) -> Iterator[Path]:
    if entry.is_symlink() or not entry.is_dir():
        yield entry
        return
    for place, folders, files in os.walk(entry):
        yield from (Path(place, name) for name in files)
        yield from (link for name in folders if (link := Path(place, name)).is_symlink())


def cache_folder() -> Path:
    """The user's cache folder: $REDX_CACHE, else $XDG_CACHE_HOME/redx, else ~/.cache/redx."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get("REDX_CACHE") or f"{shared}/redx").expanduser()
    except RuntimeError as error:
        raise RedxError("There is no home folder to keep downloads in; set REDX_CACHE to a folder.") from error
