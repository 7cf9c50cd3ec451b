"""Data from outside: fetched once into the user's cache, checked by digest, never left there half-written."""

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

ReadBlock = Callable[[int], bytes]  # the `read` of an open file, an archive member, a response


class SourceError(Exception):
    """Why one source gave nothing; there may be another, so it is no RedxError yet."""


# All that a bad source may raise. A full disk of our own is never among it: `install` makes that a RedxError.
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
    """What the content of a file must hash to."""

    algorithm: str
    value: str

    def check(self, found: str) -> None:
        if found != self.value:
            raise SourceError(f"{self.algorithm.upper()} expected {self.value}, found {found}")


def hash_stream(read: ReadBlock, algorithm: str, limit: float = math.inf) -> str:
    """The hash of a stream."""
    sums = hashlib.new(algorithm, usedforsecurity=False)  # MD5 must work on FIPS machines too
    for block in read_blocks(read, limit):
        sums.update(block)
    return sums.hexdigest()


def is_verified(path: Path, digest: Digest) -> bool:
    """Whether the file is there, can be read, and is what it should be."""
    try:
        with path.open("rb") as file:
            return hash_stream(file.read, digest.algorithm) == digest.value
    except SOURCE_ERRORS:
        return False


def install(read: ReadBlock, target: Path, limit: float, digest: Digest) -> None:
    """Write a stream to a file whole and verified or not at all: in a temporary folder beside it, then renamed."""
    sums = hashlib.new(digest.algorithm, usedforsecurity=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            with open(Path(scratch, target.name), "wb") as file:
                for block in read_blocks(read, limit):
                    sums.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            digest.check(sums.hexdigest())
            os.replace(file.name, target)
    except OSError as error:
        raise RedxError(
            f"Cannot write to {target.parent} ({reason_of(error)}); free space or set REDX_CACHE."
        ) from error


def read_blocks(read: ReadBlock, limit: float) -> Iterator[bytes]:
    """A stream piece by piece; what is wrong with it is Unusable, so that an OSError can only mean our own disk."""
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
    return getattr(error, "strerror", None) or str(error).strip("<>") or type(error).__name__


def download(url: str, limit: float, timeout: float = 5, deadline: float = 300) -> bytes:
    """What stands at a URL; `timeout` bounds each wait in seconds, `deadline` the whole."""
    end, content = time.monotonic() + deadline, bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as page, progress(url[-26:], page.length) as forward:
        for block in read_blocks(page.read1, limit):  # read1: a trickle must not hide the deadline
            content += block
            forward(len(block))
            if time.monotonic() > end:
                raise SourceError(f"took longer than {deadline:.0f} s")
    return bytes(content)


def run_tool(command: list[str], folder: Path, timeout: float = 120) -> None:
    """Let a package tool (npm, pip) work in a folder; no shell, and not for ever."""
    if not (tool := shutil.which(command[0])):
        raise SourceError(f"{command[0]} is not installed")
    with progress(" ".join(command[:3])):
        done = subprocess.run([tool, *command[1:]], cwd=folder, timeout=timeout, input=b"", capture_output=True)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise SourceError(f"exit code {done.returncode}, {said[:200] or 'no message'}")
