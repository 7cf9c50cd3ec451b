"""Files that appear whole or not at all, also when the process is killed or the machine goes down; and safe names.

Files are read in `reading`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_NAME = 100  # characters in the name of an expert
MAX_NAME_BYTES = 200  # in UTF-8; common file systems allow 255
FORBIDDEN = set('/\\:*?"<>|')
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (such as U+202E), surrogates, unassigned
DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}
RESERVED = {"all", "pooled", "router"}  # names that mean something else in a run folder
Tensors: TypeAlias = "dict[str, Tensor]"


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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside a new one, and rename it to that at the end of the block.

    What a killed process has left of the same folder is deleted first.

    Parameters
    ----------
    folder
        The folder to make; it must not exist, or be empty.

    Yields
    ------
    Path
        The folder to write to.

    Raises
    ------
    RedxError
        If the folder cannot be written.
    """
    unfinished = folder.absolute().with_name(f".{folder.absolute().name}.unfinished")
    try:
        if unfinished.is_dir() and not unfinished.is_symlink():
            shutil.rmtree(unfinished)
        make_folder(unfinished)
        try:
            yield unfinished
            for path in [*unfinished.rglob("*"), unfinished]:
                if path.is_dir():
                    sync_folder(path)
            os.replace(unfinished, folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except OSError as error:
        raise RedxError(f"Cannot write {folder} ({error.strerror}); free space or choose another folder.") from error


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


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, completely or not at all; NaN and infinity are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Tensors, about: dict[str, str] | None = None) -> None:
    """Write tensors by name as a safetensors file, with metadata if given, completely or not at all."""
    from safetensors.torch import save

    write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, about))


def without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix` and a dot, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def natural_order(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key for a name, by which numbers in names are compared as numbers.

    Examples
    --------
    >>> sorted(["a10", "a9"], key=natural_order)
    ['a9', 'a10']
    """
    pieces = re.split(r"([0-9]+)", name.casefold())  # text and numbers in turn
    keys = []
    for position, piece in enumerate(pieces):
        number = piece.lstrip("0") or "0"
        if piece:
            keys.append((0, len(number), number) if position % 2 else (1, 0, piece))
    return keys, name


def to_safe_name(name: str) -> str:
    """Return a name that a folder can have on any common disk; most names stay unchanged.

    Forbidden and invisible characters and a dash at the start, which commands take for an option, become `_`, names of
    Windows devices get one at the end, and long names are cut.

    Examples
    --------
    >>> to_safe_name("reviews/books"), to_safe_name("con")
    ('reviews_books', 'con_')
    """
    characters = unicodedata.normalize("NFC", name)[:MAX_NAME]
    allowed = "".join("_" if one in FORBIDDEN or unicodedata.category(one) in HIDDEN else one for one in characters)
    while len(allowed.encode()) > MAX_NAME_BYTES:
        allowed = allowed[:-1]
    allowed = re.sub("^-", "_", allowed.strip(" ."))
    return f"{allowed}_" if allowed.partition(".")[0].upper() in DEVICES else allowed


def check_name(name: str) -> str:
    """Return the name of an expert unchanged, or raise `RedxError` if it cannot be used."""
    if not name or to_safe_name(name) != name:
        raise RedxError(
            f"An expert cannot be called {name[:MAX_NAME]!r}, since its folder has the same name; "
            f'use at most {MAX_NAME} characters, no slashes, none of : * ? " < > |, no dots or spaces at the ends, '
            "and no dash at the start."
        )
    if name.casefold() in RESERVED:
        raise RedxError(
            f"An expert cannot be called {name!r}, which has another meaning in a run; choose another name."
        )
    return name
