"""Downloads into the cache: checked by their hash, and written completely or not at all."""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from redx.errors import RedxError
from redx.io.progress import progress

ReadBlock = Callable[[int], bytes]  # the method `read` of a file, an archive member or a response


class SourceError(Exception):
    """A source did not give the wanted file; it is not a `RedxError`, since another source may be tried."""


# All errors that a bad source may raise. A full disk on this machine is not among them: `install` raises a RedxError.
SOURCE_ERRORS = (
    SourceError,
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    http.client.HTTPException,
    subprocess.SubprocessError,
)


@dataclass(frozen=True)
class Digest:
    """The expected hash of a file.

    Attributes
    ----------
    algorithm
        Name of the hash function in `hashlib`, such as `sha256`.
    value
        The expected hash, in hexadecimal digits.
    """

    algorithm: str
    value: str

    def check(self, actual: str) -> None:
        """Raise `SourceError` if the actual hash differs from the expected one."""
        if actual != self.value:
            raise SourceError(f"{self.algorithm.upper()} expected {self.value}, found {actual}")


def hash_stream(read: ReadBlock, algorithm: str, limit: float = math.inf) -> str:
    """Return the hash of a stream.

    Parameters
    ----------
    read
        Returns the next bytes of the stream.
    algorithm
        Name of the hash function in `hashlib`.
    limit
        Largest number of bytes to accept.

    Returns
    -------
    str
        The hash, in hexadecimal digits.
    """
    hasher = hashlib.new(algorithm, usedforsecurity=False)  # MD5 must also work on machines in FIPS mode
    for block in read_blocks(read, limit):
        hasher.update(block)
    return hasher.hexdigest()


def is_verified(path: Path, digest: Digest) -> bool:
    """Return whether a file exists, can be read, and has the expected hash."""
    try:
        with path.open("rb") as file:
            return hash_stream(file.read, digest.algorithm) == digest.value
    except SOURCE_ERRORS:
        return False


def install(read: ReadBlock, target: Path, limit: float, digest: Digest) -> None:
    """Write a stream to a file, which is complete and verified, or not written at all.

    Parameters
    ----------
    read
        Returns the next bytes of the stream.
    target
        The file to write. The stream first goes to a temporary folder in the same folder.
    limit
        Largest number of bytes to accept.
    digest
        The expected hash.

    Raises
    ------
    SourceError
        If the stream fails, is too large, or has another hash.
    RedxError
        If the file cannot be written.
    """
    hasher = hashlib.new(digest.algorithm, usedforsecurity=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            with open(Path(scratch, target.name), "wb") as file:
                for block in read_blocks(read, limit):
                    hasher.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            digest.check(hasher.hexdigest())
            os.replace(file.name, target)
    except OSError as error:
        raise RedxError(
            f"Cannot write to {target.parent} ({reason_of(error)}); free space or set REDX_CACHE."
        ) from error


def read_blocks(read: ReadBlock, limit: float) -> Iterator[bytes]:
    """Yield a stream block by block.

    Every error of the stream becomes a `SourceError`, so that an OSError in the caller can only come from writing.

    Parameters
    ----------
    read
        Returns the next bytes of the stream, and nothing at its end.
    limit
        Largest number of bytes to accept.

    Yields
    ------
    bytes
        The next block, at most 1 MiB.
    """
    size = 0
    try:
        while block := read(2**20):
            size += len(block)
            if size > limit:
                raise SourceError(f"larger than the {limit} bytes allowed")
            yield block
    except SOURCE_ERRORS as error:
        raise SourceError(reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Return the message of an error, or the name of its type if it has none."""
    return getattr(error, "strerror", None) or str(error).strip("<>") or type(error).__name__


def download(url: str, limit: float, timeout: float = 5, deadline: float = 300) -> bytes:
    """Return the content of a URL.

    Parameters
    ----------
    url
        The URL to read.
    limit
        Largest number of bytes to accept.
    timeout
        Largest number of seconds to wait for the next bytes.
    deadline
        Largest number of seconds for the whole download.

    Returns
    -------
    bytes
        The content.
    """
    end, content = time.monotonic() + deadline, bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as page, progress(url[-26:], page.length) as forward:
        for block in read_blocks(page.read1, limit):  # read1 returns early, so that a slow stream meets the deadline
            content += block
            forward(len(block))
            if time.monotonic() > end:
                raise SourceError(f"took longer than {deadline:.0f} s")
    return bytes(content)


def run_tool(command: list[str], folder: Path, timeout: float = 120) -> None:
    """Run a package tool such as npm or pip in a folder, without a shell.

    Parameters
    ----------
    command
        Name of the tool and its arguments.
    folder
        The working directory.
    timeout
        Largest number of seconds that the tool may run.

    Raises
    ------
    SourceError
        If the tool is not installed or fails.
    """
    if not (tool := shutil.which(command[0])):
        raise SourceError(f"{command[0]} is not installed")
    with progress(" ".join(command[:3])):
        done = subprocess.run([tool, *command[1:]], cwd=folder, timeout=timeout, input=b"", capture_output=True)
    if done.returncode:
        message = " ".join(done.stderr.decode(errors="replace").split())
        raise SourceError(f"exit code {done.returncode}, {message[:200] or 'no message'}")
