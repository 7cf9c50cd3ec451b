"""A strict model of a disk: after a power failure only what was flushed is there.

A file has the content that it had when it was last flushed, and half of it where it never was. A folder has the entries
that it had when that folder was last flushed. What was not flushed is lost altogether, or, where a failure is torn, one
entry is lost and another is not; then a move is undone on both sides or on none.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import stat
from pathlib import Path

Entries = dict[str, int]  # inodes by name


class Disk:
    """What of a folder would be left after a power failure.

    Parameters
    ----------
    root
        The folder; all that is in it now counts as flushed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[int, Entries] = {}
        self._contents: dict[int, bytes] = {}
        self._kept: dict[int, int] = {}  # open descriptors, so that no number of a deleted file is given again
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for path in [root, *root.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            self.flush(descriptor)
            os.close(descriptor)

    def flush(self, descriptor: int) -> None:
        """Note that a file or folder was flushed."""
        status = os.fstat(descriptor)
        inode, path = status.st_ino, f"/proc/self/fd/{descriptor}"
        if stat.S_ISDIR(status.st_mode):
            self._entries[inode] = _entries(path)
        else:
            self._contents[inode] = Path(path).read_bytes()
        if inode not in self._kept:
            self._kept[inode] = os.open(path, os.O_RDONLY)

    def fail(self, torn: str | None = None) -> None:
        """Leave in the folder what a power failure leaves.

        Parameters
        ----------
        torn
            Seed of the choice of entries that last although they were not flushed; None for no such entry.
        """
        paths = {os.lstat(path).st_ino: path for path in [self.root, *self.root.rglob("*")]}
        now = {inode: _entries(path) for inode, path in paths.items() if path.is_dir()}
        contents = {inode: path.read_bytes() for inode, path in paths.items() if path.is_file()}
        names = {inode: _stable(path.relative_to(self.root)) for inode, path in paths.items()}
        left: dict[str, bytes | None] = {}

        def lasts(inode: int) -> bool:
            return torn is not None and random.Random(f"{torn} {names.get(inode, 'deleted')}").random() < 0.5

        def collect(folder: int, place: str) -> None:
            flushed, present = self._entries.get(folder, {}), now.get(folder, {})
            for name in sorted({*flushed, *present}):
                new, old = present.get(name), flushed.get(name)
                inode = new if new == old or lasts(new or old or 0) else old
                if inode is None:
                    continue
                if inode in now or inode in self._entries:
                    left[f"{place}{name}"] = None
                    collect(inode, f"{place}{name}/")
                else:
                    unflushed = contents.get(inode, b"")
                    left[f"{place}{name}"] = self._contents.get(inode, unflushed[: len(unflushed) // 2])

        collect(os.lstat(self.root).st_ino, "")
        for path in list(self.root.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, content in left.items():
            if content is None:
                (self.root / name).mkdir()
            else:
                (self.root / name).write_bytes(content)


def _entries(path: str | Path) -> Entries:
    with os.scandir(path) as found:
        return {entry.name: entry.inode() for entry in found}


def _stable(path: Path) -> str:
    """Return a path without what is drawn at random."""
    return re.sub(r"\.[0-9a-f]{8}\.tmp", ".tmp", path.as_posix())
