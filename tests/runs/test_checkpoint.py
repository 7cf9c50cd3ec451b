"""Checkpoints: one seed of a run as one file, with the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from helpers.checkpoints import Change, alter_checkpoint
from helpers.commands import Ask, refused, succeeded
from helpers.language_models import save_qwen3
from redx.config import SHARED_ONLY
from redx.errors import RedxError
from redx.io import tensor_files
from redx.runs import checkpoint, shrinking
from redx.runs.parts import read_parts

pytestmark = pytest.mark.slow


def test_a_full_checkpoint_is_the_whole_model_with_the_trained_blocks(full: Path, qwen: Path, blocks: redx.Run) -> None:
    found, pretrained = load_file(full), load_file(qwen / "model.safetensors")
    assert {name.removeprefix("backbone.") for name in found if name.startswith("backbone.")} == set(pretrained)
    changed = {name for name, tensor in pretrained.items() if not torch.equal(tensor, found[f"backbone.{name}"])}
    assert changed
    assert all(name.startswith(("model.layers.2.", "model.norm.")) for name in changed)
    seed = blocks.folder / "seed-0"
    base = load_file(seed / "base.safetensors")
    for name, tensor in base.items():
        if name.startswith("encoder.trunk.model.layers.0."):
            name = name.replace("encoder.trunk.model.layers.0.", "backbone.model.layers.2.")
        elif name.startswith("encoder.trunk.model."):
            name = name.replace("encoder.trunk.", "backbone.")
        else:
            name = f"base:{name}"
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("kind", ["full", "slim"])
def test_a_checkpoint_rebuilds_the_run_bit_for_bit(
    kind: str, blocks: redx.Run, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request.getfixturevalue(kind)
    found = checkpoint.evaluate_checkpoint(path)
    assert found.kind == kind
    before = read_parts(blocks.folder, 0).banks
    del before[SHARED_ONLY]  # a checkpoint leaves out what is for comparison alone
    assert set(found.banks) == set(before)
    for bank, parts in before.items():
        for name, tensor in parts.tensors().items():
            assert torch.equal(tensor, getattr(found.banks[bank], name)), (bank, name)
    assert set(found.same.values()) == {1.0}
    assert {"base", "red/plain", "global/value", "moe/plain", "red/integrated"} <= set(found.same)
    # with nothing kept from the run, the frozen blocks read every text anew
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "empty"))
    assert set(checkpoint.evaluate_checkpoint(path).same.values()) == {1.0}


def test_checkpoints_are_evaluated_as_runs_are(full: Path, slim: Path, blocks: redx.Run, ask: Ask, qwen: Path) -> None:
    wanted = ("--rule", "red", "--noise", "swap", "--level", "0.5", "--json")
    of_run, of_full, of_slim = (json.loads(ask("evaluate", path, *wanted)[1]) for path in (blocks.folder, full, slim))
    assert of_run["rules"] == of_full["rules"] == of_slim["rules"]
    assert "equal the run's: 1.0000" in succeeded(ask("evaluate", slim, "--backbone", qwen))
    refused(ask("evaluate", blocks.folder, "--backbone", qwen), "--backbone")


def test_runs_without_trained_blocks_and_without_a_language_model_are_exported(
    addition: redx.Run, toy: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    for run, seed in ((addition, None), (toy, 1)):
        made = checkpoint.export_run(run.folder, tmp_path / f"{run.summary['task']}.safetensors", seed)
        small = shrinking.shrink(made.path, 0)
        assert not any(name.startswith("backbone.") for name in load_file(small.path))
        for path in (made.path, small.path):
            assert set(checkpoint.evaluate_checkpoint(path).same.values()) == {1.0}
    with pytest.raises(RedxError, match="0 layers"):
        shrinking.shrink(tmp_path / "toy.safetensors", 1)


def test_changed_checkpoints_are_refused(slim: Path, full: Path, tmp_path: Path, ask: Ask) -> None:
    other = save_qwen3(tmp_path / "other", seed=1)
    refused(ask("evaluate", slim, "--backbone", other), "not the one", "model.safetensors", "--backbone")

    def try_one(path: Path, change: Change, *words: str) -> None:
        refused(ask("evaluate", alter_checkpoint(path, tmp_path / "altered.safetensors", change)), *words)

    name = "backbone.model.layers.0.mlp.up_proj.weight"
    try_one(full, lambda t, _: t[name].add_(1), name, "backbone's")
    try_one(slim, lambda t, _: t.update({"backbone.secret": torch.ones(1)}), "secret")
    try_one(slim, lambda t, _: t.update({"other:x": torch.ones(1)}), "other:x")
    try_one(slim, lambda t, _: [t.pop(key) for key in list(t) if "layers.2." in key], "lacks")
    try_one(slim, lambda t, _: t.pop("base:standardise.mean"), "base")
    try_one(slim, lambda t, _: t.update({"base:classifier.weight": torch.ones(3, 3)}), "not fit")
    try_one(slim, lambda t, _: t.update({"integration:router.mean": torch.ones(3)}), "not fit")
    try_one(slim, lambda t, _: [t.pop(key) for key in list(t) if key.startswith("router:")], "altered.safetensors")
    try_one(slim, lambda _, about: about.update(config="{"), "damaged")
    try_one(slim, lambda _, about: about.pop("files"), "damaged")
    try_one(slim, lambda _, about: about.update({tensor_files.CHECKPOINT_KEY: "[]"}), "damaged")
    try_one(slim, lambda _, about: about.update(files=about["files"].replace("model.json", "../model.json")), "damaged")
    try_one(slim, lambda _, about: about.update(files=about["files"].replace('"range_2_20"', '"../x"')), "path")
    try_one(slim, lambda t, _: t.update({"experts/../../x/expert:a": torch.ones(1)}), "path")
    facts = tensor_files.CHECKPOINT_KEY
    try_one(slim, lambda _, about: about.update({facts: about[facts].replace('"test":"', '"test":"0')}), "test split")
    save_file({"head.weight": torch.ones(2, 2)}, tmp_path / "plain.safetensors")
    refused(ask("evaluate", tmp_path / "plain.safetensors"), "no checkpoint of a run")
