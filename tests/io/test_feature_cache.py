"""The shelf: what was put in comes out, a kill leaves whole shards, and damage is told; and clearing the cache."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from redx.errors import RedxError
from redx.io import cache, feature_cache
from redx.io.feature_cache import FeatureCache

MEND = r"delete .* or all features with `redx cache clear`"


def batches(numbers: range, size: int = 4, width: int = 3) -> Iterator[list[tuple[str, Tensor]]]:
    """Text n has n % 4 + 1 rows of n, in batches."""
    for at in range(0, len(numbers), size):
        yield [(f"text {n}", torch.full((n % 4 + 1, width), float(n))) for n in numbers[at : at + size]]


def indices(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.index.npy"))


def assert_holds(folder: Path, numbers: list[int]) -> None:
    rows, counts = FeatureCache(folder, 3).get([f"text {n}" for n in numbers])
    assert counts.tolist() == [n % 4 + 1 for n in numbers]
    assert rows.tolist() == [[n] * 3 for n in numbers for _ in range(n % 4 + 1)]
    assert rows.dtype == torch.float32


@pytest.mark.parametrize("limits", [(10**9, 8192), (10**9, 10), (100, 10**9), (1, 1)])
def test_what_was_put_in_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int]) -> None:
    monkeypatch.setattr(feature_cache, "SHARD_BYTES", limits[0])
    monkeypatch.setattr(feature_cache, "SHARD_TEXTS", limits[1])
    mine = FeatureCache(tmp_path / "a", 3)
    assert mine.missing(["x", "text 1", "x"]) == ["x", "text 1"]
    mine.add(batches(range(50)))
    assert (len(indices(tmp_path / "a")) == 1) == (limits[1] == 8192)
    assert mine.missing(["text 49", "x", "text 3"]) == ["x"]
    assert_holds(tmp_path / "a", [7, 3, 3, 49, 0, 20, 7])
    assert_holds(tmp_path / "a", [])
    assert not [path for path in (tmp_path / "a").iterdir() if path.suffix != ".npy"]
    with pytest.raises(KeyError, match="nowhere"):
        mine.get(["text 1", "nowhere"])


def test_odd_texts(tmp_path: Path) -> None:
    texts = ["", "\0", "\u00e9", "e\u0301", "a" * 9999, "😀"]  # composed and decomposed are two
    FeatureCache(tmp_path, 1).add([[(text, torch.tensor([[float(at)]])) for at, text in enumerate(texts)]])
    assert FeatureCache(tmp_path, 1).get(texts)[0].flatten().tolist() == list(range(len(texts)))


def test_many_are_fast(tmp_path: Path) -> None:
    texts = [f"What is {n // 300} plus {n % 300}?" for n in range(64_000)]
    rows = torch.arange(64_000.0).repeat(16, 1).T.contiguous()
    mine = FeatureCache(tmp_path, 16)
    mine.add(list(zip(texts[at : at + 100], rows[at : at + 100].split(1), strict=True)) for at in range(0, 64_000, 100))
    assert len(indices(tmp_path)) == 8
    order = torch.randperm(64_000, generator=torch.Generator().manual_seed(0))
    asked = [texts[n] for n in order.tolist()]
    start = time.perf_counter()
    assert mine.missing(asked) == []
    found, _ = mine.get(asked)
    assert time.perf_counter() - start < 5
    assert torch.equal(found, rows[order])


def test_what_breaks_keeps_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "SHARD_TEXTS", 10)

    def breaking() -> Iterator[list[tuple[str, Tensor]]]:
        yield from batches(range(20))
        raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError, match="in the midst"):
        FeatureCache(tmp_path, 3).add(breaking())
    assert FeatureCache(tmp_path, 3).missing([f"text {n}" for n in range(22)]) == ["text 20", "text 21"]
    assert_holds(tmp_path, list(range(20)))


@pytest.mark.parametrize("at", range(4))
def test_killed_at_any_rename(tmp_path: Path, at: int) -> None:
    """A process that dies at once, without cleaning up, before its n-th rename."""
    code = f"""
import os, torch
from redx import shelf
shelf.LIMIT_TEXTS, calls, replace = 4, [], os.replace
def dying(*paths):
    calls.append(paths)
    if len(calls) == {at + 1}:
        os._exit(9)
    replace(*paths)
os.replace = dying
shelf.Shelf(shelf.Path({str(tmp_path)!r}), 3).add(
    [[(f"text {{n}}", torch.full((n % 4 + 1, 3), float(n))) for n in range(b, b + 4)] for b in range(0, 16, 4)])
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    texts = [f"text {n}" for n in range(16)]
    again = FeatureCache(tmp_path, 3)
    assert again.missing(texts) == texts[at // 2 * 4 :]
    again.add(batches(range(at // 2 * 4, 16)))
    assert_holds(tmp_path, list(range(16)))


def test_two_processes_at_once(tmp_path: Path) -> None:
    code = f"""
import sys, torch
from redx import shelf
shelf.LIMIT_TEXTS = 20
first = int(sys.argv[1])
shelf.Shelf(shelf.Path({str(tmp_path)!r}), 3, {{"pooling": "mean"}}).add(
    [[(f"text {{n}}", torch.full((n % 4 + 1, 3), float(n)))] for n in range(first, first + 200)])
"""
    reader = FeatureCache(tmp_path, 3)
    both = [subprocess.Popen([sys.executable, "-c", code, first]) for first in ("0", "100")]  # they overlap
    while any(process.poll() is None for process in both):
        reader.missing(["text 0"])  # never trips over what is being written
        time.sleep(0.02)
    assert [process.returncode for process in both] == [0, 0]
    assert reader.missing([f"text {n}" for n in range(301)]) == ["text 300"]
    assert_holds(tmp_path, list(range(300)))


def test_what_was_read_first_stays(tmp_path: Path) -> None:
    mine = FeatureCache(tmp_path, 1)
    for value in range(8):
        FeatureCache(tmp_path, 1).add([[("a", torch.tensor([[float(value)]]))]])
        assert mine.get(["a"])[0].item() == 0


# --- damage


def damaged(folder: Path, how: str) -> None:
    FeatureCache(folder, 3).add(batches(range(8)))
    index = indices(folder)[0]
    data = Path(str(index).replace(".index", ""))
    match how:
        case "truncated":
            data.write_bytes(data.read_bytes()[:-4])
        case "empty":
            data.write_bytes(b"")
        case "gone":
            data.unlink()
        case "index":
            index.write_bytes(index.read_bytes()[:-1])
        case "shorter":
            numpy.save(data, numpy.load(data)[:-1])
        case "other":
            numpy.save(index, numpy.zeros(3))
        case "negative":
            entries = numpy.load(index)
            entries["start"] -= 1
            numpy.save(index, entries)
        case "pickle":
            numpy.save(data, numpy.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("how", ["truncated", "empty", "gone", "index", "shorter", "other", "negative", "pickle"])
def test_damage_is_told(tmp_path: Path, how: str) -> None:
    damaged(tmp_path, how)
    with pytest.raises(RedxError, match=MEND):
        FeatureCache(tmp_path, 3).missing(["text 1"])


def test_another_width_is_told(tmp_path: Path) -> None:
    FeatureCache(tmp_path, 3).add(batches(range(2)))
    with pytest.raises(RedxError, match=f"has 3 features a row where 5 are expected; {MEND}"):
        FeatureCache(tmp_path, 5).missing(["text 1"])
    with pytest.raises(RedxError, match="do not fit"):
        FeatureCache(tmp_path / "b", 5).add(batches(range(2)))


def test_about_must_fit_but_for_the_name(tmp_path: Path) -> None:
    about = {"backbone": "a", "fingerprint": "1", "blocks": [1]}
    FeatureCache(tmp_path, 3, about).add(batches(range(2)))
    FeatureCache(tmp_path, 3, about | {"backbone": "b"}).add(batches(range(2)))
    with pytest.raises(RedxError, match=rf"another backbone \(fingerprint differ\); {MEND}"):
        FeatureCache(tmp_path, 3, about | {"fingerprint": "2"})
    (tmp_path / "about.json").write_text("[")
    with pytest.raises(RedxError, match=f"about.json is damaged; {MEND}"):
        FeatureCache(tmp_path, 3, about)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RedxError, match=r"Cannot write to .* \(No space left on device\); free space or set"):
            FeatureCache(tmp_path, 3).add(batches(range(8)))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RedxError, match="Cannot write to"):
        FeatureCache(tmp_path / "file" / "a", 3).add(batches(range(2)))


# --- the cache


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with something of each kind, something that is not ours, and a link out of it."""
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    for path, size in (("cache/mnist/a", 5), ("cache/mnist/b", 6), ("cache/backbones/lm/config.json", 7)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(size))
    FeatureCache(tmp_path / "cache/features/x", 3, {"pooling": "mean"}).add(batches(range(2)))
    (tmp_path / "cache/features/plain.npy").write_bytes(bytes(9))
    (tmp_path / "cache/other").write_text("mine")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/mine").write_bytes(bytes(10**6))
    (tmp_path / "cache/features/link").symlink_to(tmp_path / "outside")
    (tmp_path / "cache/backbones/lm/link").symlink_to(tmp_path / "outside")
    return tmp_path


def test_info(full: Path) -> None:
    found = {(entry["kind"], entry["name"]): entry for entry in cache.cache_entries()}
    names = [("mnist", "mnist"), ("backbone", "lm"), *(("features", name) for name in ("link", "plain.npy", "x"))]
    assert list(found) == names
    assert found["mnist", "mnist"] == {"name": "mnist", "kind": "mnist", "bytes": 11, "files": 2}
    assert found["features", "x"]["files"] == 3
    assert all(entry["bytes"] < 10**5 for entry in found.values())  # links are not followed


def test_clear(full: Path) -> None:
    sizes = {
        kind: sum(entry["bytes"] for entry in cache.cache_entries() if entry["kind"] == kind) for kind in cache.FOLDERS
    }
    assert cache.clear_cache("features") == sizes["features"] > 0
    assert {entry["kind"] for entry in cache.cache_entries()} == {"mnist", "backbone"}
    assert cache.clear_cache() == sizes["mnist"] + sizes["backbone"]
    assert cache.clear_cache() == 0
    assert (full / "outside/mine").exists()
    assert (full / "cache/other").read_text() == "mine"
    with pytest.raises(RedxError, match="no kind 'all'; choose one of mnist, backbone, features"):
        cache.clear_cache("all")


def test_a_linked_folder_is_left_alone(full: Path) -> None:
    cache.clear_cache("features")
    (full / "cache/features").rmdir()
    (full / "cache/features").symlink_to(full / "outside")
    with pytest.raises(RedxError, match="features is a link"):
        cache.clear_cache("features")
    assert (full / "outside/mine").exists()
    assert cache.cache_entries()[-1]["bytes"] < 10**5


def test_no_cache_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "none"))
    assert cache.cache_entries() == []
    assert cache.clear_cache() == 0
