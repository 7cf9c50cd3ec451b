"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redx.errors import RedxError


@contextmanager
def placing(path: Path) -> Iterator[Path]:
    """A temporary name beside a file; once it is written and safe on the disk, it takes the file's place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        try:
            yield Path(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RedxError(
            f"Cannot write {path} ({error.strerror}); free space, fix its permissions or choose another folder."
        ) from error


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with placing(path) as temporary:
        temporary.write_bytes(content)
