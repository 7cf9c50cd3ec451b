"""Folders that somebody else may have filled: nothing outside is reached through them, since no link is followed."""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from redx.errors import RedxError

Kind = Literal["file", "folder", "other"]
OWN = (".redx-edit", ".journal.json", ".lock")  # hidden entries that redx makes; those of others are left alone
APPENDED = (".lock", "run.log")  # files that are written in place; all others are replaced


def check_links(folder: Path) -> None:
    """Refuse a folder with anything in it, at any depth, but files and folders.

    Parameters
    ----------
    folder
        A run or an expert; it may be missing, and it may itself be given as a link. For a folder of a run's seed, such
        as RUN/seed-0/experts/NAME, the whole run is looked through. Hidden entries of others do not count, since
        nothing reads or writes them.

    Raises
    ------
    RedxError
        If there is a symbolic link, a pipe, a socket or a device in it, or a hard link that redx would write through.
    """
    seed = next((parent for parent in folder.parents if re.fullmatch(r"seed-\d+", parent.name)), None)
    waiting = [os.fspath(seed.parent if seed else folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = [entry for entry in found if entry.name[0] != "." or _is_own(entry.name)]
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue  # the reader says so, or a writer has just moved it
        except OSError as error:
            raise RedxError(f"{error.filename} cannot be opened ({error.strerror}); fix its permissions.") from error
        for entry in entries:
            if entry.is_symlink():
                raise RedxError(
                    f"{entry.path} is a symbolic link, and redx follows none out of a folder; "
                    "put a copy of what it points to in its place."
                )
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.name in APPENDED and entry.stat(follow_symlinks=False).st_nlink > 1:
                raise RedxError(
                    f"{entry.path} is a hard link, and what redx writes there would change another file; "
                    "put a copy in its place."
                )
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                raise RedxError(f"{entry.path} is a device or a pipe, not a regular file; move it away.")


def _is_own(name: str) -> bool:
    return name in OWN or name.endswith(".tmp")


class Below:
    """Changes the entries of a folder; every path is opened one component at a time, and no link is followed.

    Parameters
    ----------
    folder
        The folder. Its last component must not be a link either.

    Raises
    ------
    OSError
        From every method, where something is missing, a link, or of another kind.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a").write_text("text")
    >>> with Below(folder) as below:
    ...     below.rename("a", "b/c")
    ...     below.kind("a"), below.kind("b/c")
    (None, 'file')
    """

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self._descriptors: dict[str, int] = {"": self._opened(os.fspath(folder))}

    def __enter__(self) -> Below:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _opened(self, name: str, parent: int | None = None) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=parent)
        self._open.callback(os.close, descriptor)
        return descriptor

    def _folder(self, relative: str, make: bool = False) -> int:
        """Return the descriptor of a folder."""
        if relative not in self._descriptors:
            parent, _, name = relative.rpartition("/")
            above = self._folder(parent, make)
            if make:
                try:
                    os.mkdir(name, dir_fd=above)
                    os.fsync(above)
                except FileExistsError:
                    pass
            self._descriptors[relative] = self._opened(name, above)
        return self._descriptors[relative]

    def kind(self, relative: str) -> Kind | None:
        """Return what an entry is; None where there is nothing."""
        parent, _, name = relative.rpartition("/")
        try:
            mode = os.stat(name, dir_fd=self._folder(parent), follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder, in one step; folders that the target needs are made."""
        (above, _, name), (other, _, new) = source.rpartition("/"), target.rpartition("/")
        os.rename(name, new, src_dir_fd=self._folder(above), dst_dir_fd=self._folder(other, make=True))
        self._forget(source, target)

    def remove(self, relative: str) -> None:
        """Delete a file, or a folder with all that is in it; a link goes without what it points to."""
        parent, _, name = relative.rpartition("/")
        if self.kind(relative) == "folder":
            shutil.rmtree(name, dir_fd=self._folder(parent))
        else:
            os.unlink(name, dir_fd=self._folder(parent))
        self._forget(relative)

    def sync(self, relative: str = "") -> None:
        """Flush the entries of a folder to disk; one that is gone has none."""
        with suppress(FileNotFoundError):
            os.fsync(self._folder(relative))

    def _forget(self, *moved: str) -> None:
        """Open folders anew that were moved or deleted."""
        for relative in list(self._descriptors):
            if any(relative == one or relative.startswith(f"{one}/") for one in moved):
                del self._descriptors[relative]
