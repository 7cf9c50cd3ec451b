"""Hostile files of at most 50 MB in every format that redx reads from outside, each meant to fill the memory."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redx.io.manifest import MANIFEST, Entry, format_manifest

MOST = 50 * 10**6  # bytes of a file
KIT = MOST - 200_000  # bytes of an entry of a kit
PIECE = 2**26  # zeros that are compressed once and repeated


@dataclass(frozen=True)
class Bomb:
    """A hostile file or folder.

    Attributes
    ----------
    name
        What it is, in a few words.
    file
        Its path inside the folder of the case; the commands find it there.
    write
        Writes it.
    words
        The command that reads it; `{}` is the path of the file.
    """

    name: str
    file: str
    write: Callable[[Path], object]
    words: str


def fill(path: Path, pieces: Iterable[bytes], start: bytes = b"", end: bytes = b"", most: int = MOST) -> None:
    """Write pieces until the file would be larger than `most`."""
    size = len(start) + len(end)
    with path.open("wb") as file:
        file.write(start)
        for piece in pieces:
            size += len(piece)
            if size > most:
                break
            file.write(piece)
        file.write(end)


def repeat(piece: bytes, start: bytes = b"", end: bytes = b"", most: int = MOST) -> Callable[[Path], object]:
    """Return a writer of one piece, as often as it fits."""
    return lambda path: path.write_bytes(start + piece * ((most - len(start) - len(end)) // len(piece)) + end)


def numbered(
    pattern: str, start: bytes = b"", end: bytes = b"", most: int = 10**9, size: int = MOST
) -> Callable[[Path], object]:
    """Return a writer of pieces that differ by their number, as many as fit into `size` bytes and at most `most`."""

    def pieces() -> Iterator[bytes]:
        for first in range(0, most, 999):
            yield b"".join((pattern % number).encode() for number in range(first, min(first + 999, most)))

    return lambda path: fill(path, pieces(), start, end, size)


# --- archives


def zeros() -> tuple[bytes, int]:
    """Return `PIECE` zeros, compressed, and how often they fit into a file."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(PIECE)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece, (MOST - 200_000) // len(piece)


def member(archive: zipfile.ZipFile, name: str, data: bytes, size: int, kind: int = zipfile.ZIP_DEFLATED) -> None:
    """Write a member of compressed data and any declared size into an archive."""
    info = zipfile.ZipInfo(name)
    info.compress_type, info.file_size, info.compress_size, info.CRC = kind, size, len(data), 0
    file: Any = archive.fp
    info.header_offset = file.tell()
    file.write(info.FileHeader(zip64=True))
    file.write(data)
    archive.filelist.append(info)
    archive.NameToInfo[name] = info
    archive.start_dir = file.tell()
    archive._didModify = True  # type: ignore[attr-defined]


def header(kind: str, *shape: int) -> bytes:
    """Return the header of an array."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


def bomb_of_zeros(path: Path) -> None:
    """Write an archive of 50 GB of zeros."""
    piece, count = zeros()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = header("|u1", PIECE, count)
    data = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH) + piece * count + b"\3\0"
    with zipfile.ZipFile(path, "w") as archive:
        member(archive, "x.npy", data, len(head) + count * PIECE)
        archive.writestr("y.npy", header("|u1", PIECE) + bytes(PIECE), zipfile.ZIP_DEFLATED)


def declared(*shape: int, kind: str = "<f4") -> Callable[[Path], object]:
    """Return a writer of an archive that declares a huge array and stores little of it."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", header(kind, *shape) + bytes(1000))
            archive.writestr("y.npy", header("|u1", shape[0]) + bytes(1000))

    return write


def arrays(compress: bool = True, **values: Any) -> Callable[[Path], object]:
    """Return a writer of honest arrays; every value is a function that makes an array."""

    def write(path: Path) -> None:
        import numpy

        (numpy.savez_compressed if compress else numpy.savez)(path, **{name: make() for name, make in values.items()})

    return write


def full(shape: tuple[int, ...], kind: str, text: str = "") -> Callable[[], Any]:
    """Return a function that makes an array of two values in turn; of `text` with a number where it is given."""

    def make() -> Any:
        import numpy

        if text:
            return numpy.array([text % number for number in range(shape[0])], kind)
        values = numpy.zeros(shape, kind)
        values[::2] = 1
        return values

    return make


def many_members(path: Path) -> None:
    """Write an archive whose directory lists one member a million times."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header("|u1", 1, 1) + b"\0")
        first = archive.filelist[0]
        for number in range(MOST // 54):
            info = zipfile.ZipInfo(f"{number}")
            info.header_offset, info.file_size, info.compress_size, info.CRC = 0, 129, 129, first.CRC
            archive.filelist.append(info)


def gzipped(path: Path) -> None:
    """Write four .gz files of MNIST, of which the first unpacks to 50 GB."""
    path.mkdir()
    piece = gzip.compress(bytes(PIECE), 9)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (path / f"{name}-ubyte.gz").write_bytes(piece * (MOST // 4 // len(piece)))


# --- kits


def honest(path: Path) -> dict[str, bytes]:
    """Return the entries of the honest kit beside a hostile one."""
    with zipfile.ZipFile(path.with_name("kit.zip")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def kit(name: str, write: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a writer of the honest kit with another content of one entry."""

    def change(path: Path) -> None:
        entries = honest(path)
        write(path)
        entries[name] = path.read_bytes()[:KIT]
        pack(path, entries)

    return change


def pack(path: Path, entries: dict[str, bytes]) -> None:
    """Write entries to an archive, stored as they are, with a manifest that lists them."""
    listed = {name: content for name, content in entries.items() if name != MANIFEST}
    files = {name: Entry(hashlib.sha256(content).hexdigest(), len(content)) for name, content in listed.items()}
    entries = listed | {MANIFEST: format_manifest(files)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)  # the manifest last


def kit_of_zeros(path: Path) -> None:
    """Write a kit whose base unpacks to 50 GB of zeros."""
    entries, (piece, count) = honest(path), zeros()
    del entries["base.safetensors"]
    pack(path, entries)
    with zipfile.ZipFile(path, "a") as archive:
        member(archive, "base.safetensors", piece * (count - 1) + b"\3\0", (count - 1) * PIECE)


def kit_of_declared_size(path: Path) -> None:
    """Write a kit whose base declares 8 GB, stored, and has a megabyte."""
    entries = honest(path)
    del entries["base.safetensors"]
    pack(path, entries)
    with zipfile.ZipFile(path, "a") as archive:
        member(archive, "base.safetensors", bytes(2**20), 2**20, zipfile.ZIP_STORED)
        archive.filelist[-1].file_size = archive.filelist[-1].compress_size = 2**33


def kit_of_one_entry(path: Path) -> None:
    """Write a kit whose entries are all the same bytes of the file."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kit.json", bytes(KIT))
        for name in ("model.json", "base.safetensors", "shared.safetensors", MANIFEST):
            info = zipfile.ZipInfo(name)
            info.file_size = info.compress_size = KIT
            info.header_offset, info.CRC = 0, archive.filelist[0].CRC
            archive.filelist.append(info)


def kit_of_experts(**changes: Any) -> Callable[[Path], object]:
    """Return a writer of a kit whose settings ask for other experts."""

    def write(path: Path) -> None:
        entries = honest(path)
        about = json.loads(entries["kit.json"])
        for name, settings in about["config"]["banks"].items():
            settings |= changes if name.startswith("residual") else {}
        pack(path, entries | {"kit.json": json.dumps(about).encode()})

    return write


# --- tables


def parquet(make: Callable[[Any], Any], **options: Any) -> Callable[[Path], object]:
    """Return a writer of a Parquet file; `make` gets pyarrow."""

    def write(path: Path) -> None:
        import pyarrow
        from pyarrow import parquet as format

        format.write_table(make(pyarrow), path, **options)

    return write


# --- tensors


def safetensors(entries: Callable[[], dict[str, Any]], data: int = 0) -> Callable[[Path], object]:
    """Return a writer of a safetensors file with any header and so many bytes of zeros."""

    def write(path: Path) -> None:
        head = json.dumps(entries(), separators=(",", ":")).encode()
        path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(data))

    return write


def tensor_entries(count: int, *shape: int) -> dict[str, Any]:
    """Return the header of so many tensors of the same bytes or of none."""
    return {str(n): {"dtype": "U8", "shape": list(shape), "data_offsets": [0, 0]} for n in range(count)}


def pickled(program: bytes | Callable[[], bytes]) -> Callable[[Path], object]:
    """Return a writer of a .pt file with any program."""

    def write(path: Path) -> None:
        content = program if isinstance(program, bytes) else program()
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in (("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n")):
                archive.writestr(f"archive/{name}", part)

    return write


def laughs(width: int = 1000, levels: int = 6) -> bytes:
    """Return a program of lists of the same list, again and again: small on disk, and huge when it is printed."""
    out = b"\x80\x02}(X\1\0\0\0a]q\0K\1a"
    for level in range(levels):
        name = b"X\1\0\0\0" + bytes([98 + level])
        out += name + b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * width + b"e"
    return out + b"u."
