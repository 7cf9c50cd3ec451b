"""Shrunk checkpoints: what was trained and no more, ours and those of other scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import redx
from helpers.checkpoints import LAYERS, alter_checkpoint, foreign_state
from helpers.commands import Ask, refused
from redx.io import tensor_files
from redx.runs import checkpoint, shrinking


@pytest.mark.slow
def test_a_slim_checkpoint_holds_only_what_was_trained(full: Path, slim: Path, tmp_path: Path) -> None:
    whole, kept = load_file(full), load_file(slim)
    left = set(whole) - set(kept)
    assert left == {
        name
        for name in whole
        if name.startswith(("backbone.model.embed_tokens", "backbone.model.layers.0.", "backbone.model.layers.1."))
    }
    assert all(torch.equal(whole[name], tensor) for name, tensor in kept.items())
    again = shrinking.shrink(slim, 1, out=tmp_path / "again.safetensors")
    assert again.share == 1
    more = shrinking.shrink(full, 2, out=tmp_path / "more.safetensors")
    assert any("layers.1." in name for name in load_file(more.path))
    assert set(checkpoint.evaluate_checkpoint(more.path).same.values()) == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["red", "red/plain", "moe"])
def test_a_checkpoint_can_be_narrowed_to_what_a_rule_reads(rule: str, full: Path, slim: Path, tmp_path: Path) -> None:
    made = shrinking.shrink(full, 1, out=tmp_path / "narrow.safetensors", rule=rule)
    assert made.after.bytes < slim.stat().st_size
    found = checkpoint.evaluate_checkpoint(made.path)
    form = {"red": "residual", "moe": "standalone"}[rule.split("/")[0]]
    assert {kept for kept, _ in found.banks} == {form}
    assert set(found.same.values()) == {1.0}
    assert any(name.startswith(rule) for name in found.same)


@pytest.mark.slow
def test_a_rule_without_a_bank_of_experts_cannot_narrow_a_checkpoint(full: Path, ask: Ask) -> None:
    for rule, word in (("global", "can be narrowed to"), ("red/nobody", "can be narrowed to"), ("x", "no rule 'x'")):
        refused(ask("shrink", full, LAYERS, 1, "--rule", rule), word)


@pytest.mark.slow
def test_parameters_and_bytes_are_printed(full: Path, tmp_path: Path, ask: Ask) -> None:
    code, out, _ = ask(
        "shrink", full, LAYERS, 1, "--dtype", "float16", "--out", tmp_path / "half.safetensors", "--json"
    )
    assert code == 0
    told = json.loads(out)
    assert told["bytes"] == {"before": full.stat().st_size, "after": (tmp_path / "half.safetensors").stat().st_size}
    assert told["parameters"]["before"] == sum(t.numel() for t in load_file(full).values() if t.is_floating_point())
    assert told["share"] == told["bytes"]["after"] / told["bytes"]["before"]
    code, out, _ = ask("shrink", full, LAYERS, 1, "--out", tmp_path / "slim.safetensors")
    assert code == 0
    assert f"{full.stat().st_size:,}" in out
    assert "%" in out
    half = load_file(tmp_path / "half.safetensors")
    for name, tensor in load_file(full).items():
        if name in half:
            fewer = tensor.is_floating_point() and tensor.ndim > 1
            assert half[name].dtype == (torch.float16 if fewer else tensor.dtype)
    code, out, _ = ask("evaluate", tmp_path / "half.safetensors", "--json")
    assert code == 0
    same = json.loads(out)["checkpoint"]["same_answers"]
    assert min(same.values()) > 0.9


@pytest.mark.slow
def test_mistakes_of_export_and_shrink_are_refused(full: Path, blocks: redx.Run, tmp_path: Path, ask: Ask) -> None:
    refused(ask("export", blocks.folder, "--seed", 7), "no seed 7")
    refused(ask("export", tmp_path), "config.json")
    refused(ask("export", blocks.folder, "--out", "x.pt"), ".safetensors")
    refused(ask("shrink", full, LAYERS, 0), "trained the last 1", LAYERS)
    refused(ask("shrink", full, LAYERS, 4), "3 layers", "0 to 3")
    refused(ask("shrink", full, LAYERS, 1, "--dtype", "int8"), "int8", "float16")
    refused(ask("shrink", full, LAYERS, 1, "--out", full), "overwrite")
    refused(ask("shrink", tmp_path / "nosuch.safetensors", LAYERS, 1), "no")
    refused(ask("shrink", blocks.folder, LAYERS, 1), "folder")
    for name in ("backbone.model.secret.weight", "other:x", "mystery"):
        strange = alter_checkpoint(full, tmp_path / "strange.safetensors", lambda t, _: t.update({name: torch.ones(2)}))  # noqa: B023
        refused(ask("shrink", strange, LAYERS, 1), name, "--keep")
    loud = alter_checkpoint(full, tmp_path / "loud.safetensors", lambda t, _: t["base:classifier.weight"].fill_(1e6))
    refused(ask("shrink", loud, LAYERS, 1, "--dtype", "float16"), "too large", "bfloat16")
    assert not list(tmp_path.glob("*.slim*"))
    assert ask("shrink", loud, LAYERS, 1, "--dtype", "bfloat16")[0] == 0
    (tmp_path / "locked").write_text("")
    refused(ask("shrink", full, LAYERS, 1, "--out", tmp_path / "locked" / "x.safetensors"), "Cannot write")


@pytest.mark.parametrize("prefix", ["backbone.", "model.", "backbone.model.", "module.backbone.", ""])
@pytest.mark.parametrize("wrap", [False, True])
def test_a_pt_file_of_other_scripts_is_shrunk(prefix: str, wrap: bool, tmp_path: Path, ask: Ask) -> None:
    state = foreign_state(prefix)
    optimizer = {"state": {0: {"step": torch.ones(1)}}}
    whole = {"model_state_dict": state, "epoch": 10, "args": {"lr": 1e-4}}
    whole |= {"optimizer_state_dict": optimizer, "torch_rng_state": torch.ones(5)}
    torch.save(whole if wrap else state, tmp_path / "expert_best_ep60.pt")
    code, out, err = ask("shrink", tmp_path / "expert_best_ep60.pt", LAYERS, 1, "--json")
    assert code == 0, err
    made = Path(json.loads(out)["file"])
    assert made == tmp_path / "expert_best_ep60.slim.safetensors"
    kept = load_file(made)
    assert set(kept) == {name for name in state if "layers.3." in name or "norm.weight" in name.split("layers")[0]} | {
        "head.weight",
        "router.net.0.weight",
    } | {f"{prefix}norm.weight"}
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())
    code, out, _ = ask("inspect", made, "--json")
    told = json.loads(out)
    assert told["kind"] == "checkpoint, slim"
    assert told["about"][tensor_files.CHECKPOINT_KEY]["values"] == ({"epoch": 10, "args": {"lr": 1e-4}} if wrap else {})
    refused(ask("evaluate", made), "no checkpoint of a run")


def test_tensors_that_may_have_been_trained_are_kept(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "x.pt"
    state = foreign_state("backbone.")
    adapted = "backbone.layers.0.self_attn.q_proj.lora_A.weight"
    torch.save(state | {adapted: torch.ones(2, 8)}, path)
    assert adapted in load_file(shrinking.shrink(path, 1).path)
    torch.save(state | {"lm_head.weight": torch.randn(50, 8)}, path)
    refused(ask("shrink", path, LAYERS, 1), "lm_head.weight", "--keep")
    assert "lm_head.weight" in load_file(shrinking.shrink(path, 1, keep=["lm_head"]).path)
    torch.save(state | {"lm_head.weight": state["backbone.embed_tokens.weight"]}, path)  # tied: the same values
    assert "lm_head.weight" not in load_file(shrinking.shrink(path, 1).path)
    torch.save(state | {"fancy.weight": torch.ones(1), "other.weight": torch.ones(1)}, path)
    refused(ask("shrink", path, LAYERS, 1), "fancy.weight, other.weight", "--keep")
    refused(ask("shrink", path, LAYERS, 5, "--keep", "fancy"), "4 layers")
    torch.save(state | {"decoder.layers.0.weight": torch.ones(1), "encoder.layers.0.weight": torch.ones(1)}, path)
    refused(ask("shrink", path, LAYERS, 1), "several stacks")
    torch.save({"head.weight": state["head.weight"], "head.again": state["head.weight"]}, path)
    assert set(load_file(shrinking.shrink(path, 0).path)) == {"head.weight", "head.again"}
