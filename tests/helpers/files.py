"""Faults of the disk, to be patched in for functions of the operating system."""

import errno
import os


def disk_full(*_: object, **__: object) -> None:
    """Fail as writing to a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
