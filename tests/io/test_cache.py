"""The user's cache: where it lies, what it holds, and how it is cleared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from redx.errors import RedxError
from redx.io import cache
from redx.io.feature_cache import FeatureCache


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("REDX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_folder() == Path("/home/someone/.cache/redx")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert cache.cache_folder() == Path("/var/xdg/redx")
    monkeypatch.setenv("REDX_CACHE", "~/mine")
    assert cache.cache_folder() == Path("/home/someone/mine")


def test_a_cache_without_a_home_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", "~nobody-of-that-name/x")
    with pytest.raises(RedxError, match="set REDX_CACHE"):
        cache.cache_folder()


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with something of each kind, something that is not ours, and a link out of it."""
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    for path, size in (("cache/mnist/a", 5), ("cache/mnist/b", 6), ("cache/backbones/lm/config.json", 7)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(size))
    FeatureCache(tmp_path / "cache/features/x", 3, {"pooling": "mean"}).add([[("text", torch.ones(2, 3))]])
    (tmp_path / "cache/features/plain.npy").write_bytes(bytes(9))
    (tmp_path / "cache/other").write_text("mine")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/mine").write_bytes(bytes(10**6))
    (tmp_path / "cache/features/link").symlink_to(tmp_path / "outside")
    (tmp_path / "cache/backbones/lm/link").symlink_to(tmp_path / "outside")
    return tmp_path


def test_entries_are_listed_by_kind_and_links_are_not_followed(full: Path) -> None:
    entries = {(entry["kind"], entry["name"]): entry for entry in cache.cache_entries()}
    names = [("mnist", "mnist"), ("backbone", "lm"), *(("features", name) for name in ("link", "plain.npy", "x"))]
    assert list(entries) == names
    assert entries["mnist", "mnist"] == {"name": "mnist", "kind": "mnist", "bytes": 11, "files": 2}
    assert entries["features", "x"]["files"] == 4
    assert all(entry["bytes"] < 10**5 for entry in entries.values())  # links are not followed


def test_clearing_removes_one_kind_or_all_and_nothing_else(full: Path) -> None:
    sizes = {
        kind: sum(entry["bytes"] for entry in cache.cache_entries() if entry["kind"] == kind) for kind in cache.FOLDERS
    }
    assert cache.clear_cache("features") == sizes["features"] > 0
    assert {entry["kind"] for entry in cache.cache_entries()} == {"mnist", "backbone"}
    assert cache.clear_cache() == sizes["mnist"] + sizes["backbone"]
    assert cache.clear_cache() == 0
    assert (full / "outside/mine").exists()
    assert (full / "cache/other").read_text() == "mine"
    with pytest.raises(RedxError, match="no kind 'all'; choose one of mnist, intents, backbone, features"):
        cache.clear_cache("all")


def test_a_linked_folder_is_left_alone(full: Path) -> None:
    cache.clear_cache("features")
    (full / "cache/features").rmdir()
    (full / "cache/features").symlink_to(full / "outside")
    with pytest.raises(RedxError, match="features is a link"):
        cache.clear_cache("features")
    assert (full / "outside/mine").exists()
    assert cache.cache_entries()[-1]["bytes"] < 10**5


def test_an_empty_cache_has_no_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "none"))
    assert cache.cache_entries() == []
    assert cache.clear_cache() == 0
