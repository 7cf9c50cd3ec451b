"""Checksums beside files of a cache, so that a file that was changed afterwards is noticed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from redx.errors import RedxError
from redx.io.atomic import write_bytes
from redx.io.hashing import checksum
from redx.io.reading import exists, read_json

CHECKSUMS = ".sums.json"  # how the name of a file of checksums ends


class ChangedFile(Exception):
    """A file has another checksum than the one that was written beside it."""


def write_checksums(path: Path, files: Sequence[Path], names: Sequence[str] = ()) -> None:
    """Write the checksums of files to a file of their own, completely or not at all.

    Parameters
    ----------
    path
        The file of checksums.
    files
        The files.
    names
        The names that they are going to have, if other than now.
    """
    sums = {name: checksum(file) for name, file in zip(names or [file.name for file in files], files, strict=True)}
    write_bytes(path, json.dumps(sums).encode())


def check_checksums(path: Path, files: Sequence[Path]) -> None:
    """Compare files with their checksums; once per process for each state of a file.

    A cache of an older version has no checksums: they are added where the folder can be written to.

    Raises
    ------
    ChangedFile
        If a file, or the file of checksums, is not what was written.
    """
    if not exists(path):
        with suppress(OSError, RedxError):
            write_checksums(path, files)
        return
    try:
        sums = read_json(path, dict[str, str])
    except RedxError as error:
        raise ChangedFile(f"{path} is damaged") from error
    for file in files:
        if sums.get(file.name) != checksum(file):
            raise ChangedFile(f"{file} was changed after it was written (its checksum differs)")
