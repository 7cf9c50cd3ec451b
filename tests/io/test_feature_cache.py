"""Cached features: what was added comes out, a kill leaves whole shards, and damage is reported."""

from __future__ import annotations

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

from helpers.files import disk_full
from redx.errors import RedxError
from redx.io import feature_cache
from redx.io.feature_cache import FeatureCache

ADVICE = r"clear all features with `redx cache clear`"


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
def test_features_that_were_added_come_out(tmp_path: Path, limits: tuple[int, int]) -> None:
    mine = FeatureCache(tmp_path / "a", 3, max_shard_bytes=limits[0], max_shard_texts=limits[1])
    assert mine.missing(["x", "text 1", "x"]) == ["x", "text 1"]
    mine.add(batches(range(50)))
    assert (len(indices(tmp_path / "a")) == 1) == (limits[1] == 8192)
    assert mine.missing(["text 49", "x", "text 3"]) == ["x"]
    assert_holds(tmp_path / "a", [7, 3, 3, 49, 0, 20, 7])
    assert_holds(tmp_path / "a", [])
    assert not [path for path in (tmp_path / "a").iterdir() if not path.name.endswith((".npy", ".sums.json"))]
    with pytest.raises(KeyError, match="nowhere"):
        mine.get(["text 1", "nowhere"])


def test_texts_of_any_characters_are_told_apart(tmp_path: Path) -> None:
    texts = ["", "\0", "\u00e9", "e\u0301", "a" * 9999, "😀"]  # composed and decomposed are two
    FeatureCache(tmp_path, 1).add([[(text, torch.tensor([[float(at)]])) for at, text in enumerate(texts)]])
    assert FeatureCache(tmp_path, 1).get(texts)[0].flatten().tolist() == list(range(len(texts)))


def test_many_texts_are_found_fast(tmp_path: Path) -> None:
    texts = [f"What is {n // 300} plus {n % 300}?" for n in range(64_000)]
    rows = torch.arange(64_000.0).repeat(16, 1).T.contiguous()
    mine = FeatureCache(tmp_path, 16)
    mine.add(list(zip(texts[at : at + 100], rows[at : at + 100].split(1), strict=True)) for at in range(0, 64_000, 100))
    assert len(indices(tmp_path)) == 8
    order = torch.randperm(64_000, generator=torch.Generator().manual_seed(0))
    asked = [texts[n] for n in order.tolist()]
    start = time.perf_counter()
    assert mine.missing(asked) == []
    cached, _ = mine.get(asked)
    assert time.perf_counter() - start < 5
    assert torch.equal(cached, rows[order])


def test_an_error_keeps_the_batches_before_it(tmp_path: Path) -> None:
    def breaking() -> Iterator[list[tuple[str, Tensor]]]:
        yield from batches(range(20))
        raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError, match="in the midst"):
        FeatureCache(tmp_path, 3, max_shard_texts=10).add(breaking())
    assert FeatureCache(tmp_path, 3).missing([f"text {n}" for n in range(22)]) == ["text 20", "text 21"]
    assert_holds(tmp_path, list(range(20)))


DYING_WRITERS = """
import os, sys
from pathlib import Path
import torch
from redx.io.feature_cache import FeatureCache

def write(folder, die_at):
    calls, replace = [], os.replace
    def dying(*paths):
        calls.append(paths)
        if len(calls) == die_at + 1:
            os._exit(9)
        replace(*paths)
    os.replace = dying
    FeatureCache(Path(folder), 3, max_shard_texts=4).add(
        [[(f"text {n}", torch.full((n % 4 + 1, 3), float(n))) for n in range(b, b + 4)] for b in range(0, 16, 4)])

for die_at in range(8):
    child = os.fork()
    if child == 0:
        write(f"{sys.argv[1]}/{die_at}", die_at)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
"""


@pytest.mark.slow
def test_a_process_killed_at_any_rename_leaves_whole_shards(tmp_path: Path) -> None:
    """Processes that die at once, without cleaning up, before any rename of their first two shards."""
    subprocess.run([sys.executable, "-c", DYING_WRITERS, str(tmp_path)], check=True)
    texts = [f"text {n}" for n in range(16)]
    for die_at in range(8):
        again = FeatureCache(tmp_path / str(die_at), 3)
        assert again.missing(texts) == texts[die_at // 4 * 4 :]
        again.add(batches(range(die_at // 4 * 4, 16)))
        assert_holds(tmp_path / str(die_at), list(range(16)))


WRITER = """
import sys
from pathlib import Path
import torch
from redx.io.feature_cache import FeatureCache

first = int(sys.argv[2])
FeatureCache(Path(sys.argv[1]), 3, {"pooling": "mean"}, max_shard_texts=20).add(
    [[(f"text {n}", torch.full((n % 4 + 1, 3), float(n)))] for n in range(first, first + 200)])
"""


@pytest.mark.slow
def test_two_processes_write_at_once(tmp_path: Path) -> None:
    reader = FeatureCache(tmp_path, 3)
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, first]) for first in ("0", "100")]  # they overlap
    while any(writer.poll() is None for writer in writers):
        reader.missing(["text 0"])  # reads while others write
        time.sleep(0.02)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert reader.missing([f"text {n}" for n in range(301)]) == ["text 300"]
    assert_holds(tmp_path, list(range(300)))


def test_of_equal_texts_the_one_read_first_stays(tmp_path: Path) -> None:
    mine = FeatureCache(tmp_path, 1)
    for value in range(8):
        FeatureCache(tmp_path, 1).add([[("a", torch.tensor([[float(value)]]))]])
        assert mine.get(["a"])[0].item() == 0


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
def test_damage_is_reported(tmp_path: Path, how: str) -> None:
    damaged(tmp_path, how)
    with pytest.raises(RedxError, match=ADVICE):
        FeatureCache(tmp_path, 3).missing(["text 1"])


def test_another_width_is_reported(tmp_path: Path) -> None:
    FeatureCache(tmp_path, 3).add(batches(range(2)))
    with pytest.raises(RedxError, match=f"has 3 features a row where 5 are expected; {ADVICE}"):
        FeatureCache(tmp_path, 5).missing(["text 1"])
    with pytest.raises(RedxError, match="do not fit"):
        FeatureCache(tmp_path / "b", 5).add(batches(range(2)))


def test_info_must_be_equal_except_for_the_name_of_the_backbone(tmp_path: Path) -> None:
    info = {"backbone": "a", "fingerprint": "1", "blocks": [1]}
    FeatureCache(tmp_path, 3, info).add(batches(range(2)))
    FeatureCache(tmp_path, 3, info | {"backbone": "b"}).add(batches(range(2)))
    with pytest.raises(RedxError, match=rf"another backbone \(fingerprint differ\); {ADVICE}"):
        FeatureCache(tmp_path, 3, info | {"fingerprint": "2"})
    (tmp_path / "about.json").write_text("[")
    with pytest.raises(RedxError, match=f"about.json is damaged; {ADVICE}"):
        FeatureCache(tmp_path, 3, info)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, disk_full)
        with pytest.raises(RedxError, match=r"Cannot write to .* \(No space left on device\); free space or set"):
            FeatureCache(tmp_path, 3).add(batches(range(8)))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RedxError, match="Cannot write to"):
        FeatureCache(tmp_path / "file" / "a", 3).add(batches(range(2)))


def test_cached_rows_are_computed_once_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path))
    rows = torch.randn(10, 3)
    calls = []

    def compute() -> list[torch.Tensor]:
        calls.append(1)
        return list(rows.split(4))

    for _ in range(2):
        assert torch.equal(feature_cache.cached_rows("x", 10, compute), rows)
    assert len(calls) == 1
    path = tmp_path / "embeddings" / "x.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RedxError, match="truncated"):
        feature_cache.cached_rows("x", 10, compute)

    def fail() -> list[torch.Tensor]:
        raise OSError(28, "No space left on device")

    with pytest.raises(RedxError, match="free space"):
        feature_cache.cached_rows("y", 10, fail)
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.npy", "x.sums.json"]
