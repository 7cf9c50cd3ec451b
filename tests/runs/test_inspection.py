"""Inspection: what is inside files and folders, from their headers alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.commands import Ask, refused, succeeded
from redx.runs import inspection


@pytest.mark.slow
def test_every_file_of_ours_is_recognised(
    blocks: redx.Run, full: Path, slim: Path, qwen: Path, ask: Ask, blocks_cache: Path
) -> None:
    seed = blocks.folder / "seed-0"
    kinds = {
        blocks.folder: "run",
        seed: "one seed of a run",
        seed / "experts" / "range_2_20": "expert",
        seed / "experts" / "range_2_20" / "expert.safetensors": "expert",
        seed / "experts" / "range_2_20" / "expert.json": "description of an expert",
        seed / "base.safetensors": "base",
        seed / "features.safetensors": "features of a run",
        seed / "router.safetensors": "router",
        seed / "pooled.safetensors": "pooled heads",
        seed / "integration.safetensors": "residual experts and router after stage 4",
        next((seed / "parts").iterdir()): "parts",
        seed / "model.json": "description of a model",
        seed / "risk.json": "calibration of a model",
        seed / "thresholds.safetensors": "thresholds of calibration examples",
        blocks.folder / "config.json": "settings of a run",
        blocks.folder / "summary.json": "summary of a run",
        blocks.folder / "results.jsonl": "lines of JSON",
        qwen: "language model",
        qwen / "model.safetensors": "language model",
        next((blocks_cache / "features").iterdir()): "feature cache",
        next((blocks_cache / "embeddings").glob("*.npy")): "array of features",
        full: "checkpoint, full",
        slim: "checkpoint, slim",
    }
    for path, kind in kinds.items():
        contents = json.loads(succeeded(ask("inspect", path, "--json")))
        assert contents["kind"] == kind, path
        for entry in contents["tensors"]:
            assert set(entry) == {"name", "shape", "dtype", "numbers", "bytes"}
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            assert {entry["name"] for entry in contents["tensors"]} == set(tensors)
            assert sum(entry["bytes"] for entry in contents["tensors"]) == sum(t.nbytes for t in tensors.values())
            assert contents["numbers"] == sum(t.numel() for t in tensors.values())
        assert kind in succeeded(ask("inspect", path))


@pytest.mark.slow
def test_only_headers_are_read(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch, "load", forbidden)
    monkeypatch.setattr(torch, "frombuffer", forbidden)
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert inspection.inspect_path(full).tensors > 10


def test_a_pt_file_and_other_files_are_shown(tmp_path: Path, ask: Ask) -> None:
    torch.save({"state_dict": {"head.[red]weight": torch.ones(3, 4)}, "epoch": 7}, tmp_path / "x.pt")
    code, out, _ = ask("inspect", tmp_path / "x.pt")
    assert code == 0
    for word in ("state dict (.pt)", "epoch: 7", "head.[red]weight", "3 × 4", "float32", "12", "48"):
        assert word in out
    (tmp_path / "x.txt").write_text("hello")
    assert "unknown" in ask("inspect", tmp_path / "x.txt")[1]
    (tmp_path / "x.json").write_text("[1, 2]")
    assert "JSON" in ask("inspect", tmp_path / "x.json")[1]
    (tmp_path / "x.json").write_text('{"a": "\\u001b[2J"')
    refused(ask("inspect", tmp_path / "x.json"), "not JSON")
    (tmp_path / "x.json").write_text('{"a": "\\u001b[2J"}')
    assert "\x1b[2J" not in ask("inspect", tmp_path / "x.json")[1]
    refused(ask("inspect", tmp_path / "nosuch"), "no")
    shutil.copy(tmp_path / "x.txt", tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0\0\0")
    refused(ask("inspect", tmp_path / "x.npy"), "truncated")
