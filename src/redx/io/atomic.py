"""Files that appear whole or not at all, also when the process is killed or the machine goes down."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redx.errors import RedxError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` at the end of the block.

    If the block raises an exception, the temporary file is deleted and `path` is unchanged.

    Parameters
    ----------
    path
        The file to write; missing parent folders are made.

    Yields
    ------
    Path
        The temporary path to write to.

    Raises
    ------
    RedxError
        If the file cannot be written.
    """
    try:
        make_folder(path.parent)
        _remove_stale(path)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = None
        try:
            descriptor = _create_locked(temporary)
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)
    except OSError as error:
        raise RedxError(
            f"Cannot write {path} ({error.strerror}); free space, fix its permissions or choose another folder."
        ) from error


def _create_locked(temporary: Path) -> int | None:
    """Create a file and lock it for as long as its descriptor is open, so that `_remove_stale` leaves it alone."""
    while True:
        # the system applies the user's umask to this mode
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:  # Windows moves no open files
            return os.close(descriptor)
        with suppress(OSError):  # some network disks have no locks; then nothing is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():  # another process may have removed it before it was locked
            return descriptor
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    """Delete the temporary files that killed processes have left for the same target; their locks are free."""
    if fcntl is None:
        return
    for entry in list(os.scandir(path.parent)):
        if re.fullmatch(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp", entry.name) and entry.is_file(
            follow_symlinks=False
        ):
            with suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing, and flush them to disk."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the system allows it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks do not flush folders
            raise
    finally:
        os.close(descriptor)
