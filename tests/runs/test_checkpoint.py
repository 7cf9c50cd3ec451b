"""Checkpoints: one seed as one file, shrunk to what was trained, with the same answers; bad files run nothing."""

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_lm
import torch
from asking import Ask, refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import redx
from redx.errors import RedxError
from redx.io import tensor_files
from redx.runs import checkpoint, inspection, shrinking
from redx.runs.parts import read_parts

LAYERS = "--trainable-last-n-layers"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("REDX_CACHE", str(place / "cache"))


@pytest.fixture(scope="module")
def blocks(qwen: Path, place: Path) -> redx.Run:
    """The papers' recipe on three tiny blocks, of which the last is trained, with ownership and stage 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDX_CACHE", str(place / "cache"))
        few: dict[str, Any] = {"epochs": {"base": 3, "experts": 2, "router": 2}, "study": "none", "integrate": True}
        trunk = {"trunk": "blocks", "train_blocks": 1, "limit": 600}
        return redx.run("addition", "quick", out=place / "run", backbone=str(qwen), **trunk, **few)


@pytest.fixture(scope="module")
def full(blocks: redx.Run, place: Path) -> Path:
    return checkpoint.export_run(blocks.folder, place / "full.safetensors").path


@pytest.fixture(scope="module")
def slim(full: Path) -> Path:
    return shrinking.shrink(full, 1).path


# Full and slim


def test_a_full_checkpoint_is_the_whole_model_with_the_trained_blocks_in_place(
    full: Path, qwen: Path, blocks: redx.Run
) -> None:
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
def test_the_run_is_rebuilt_bit_for_bit(
    kind: str, blocks: redx.Run, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request.getfixturevalue(kind)
    found = checkpoint.evaluate_checkpoint(path)
    assert found.kind == kind
    before = read_parts(blocks.folder, 0).banks
    assert set(found.banks) == set(before)
    for bank, parts in before.items():
        for name, tensor in vars(parts).items():
            assert torch.equal(tensor, getattr(found.banks[bank], name)), (bank, name)
    assert set(found.same.values()) == {1.0}
    assert {"base", "red/plain", "global/linear", "moe/plain", "red/integrated"} <= set(found.same)
    # with nothing kept from the run, the frozen blocks read every text anew
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "empty"))
    assert set(checkpoint.evaluate_checkpoint(path).same.values()) == {1.0}


def test_a_slim_checkpoint_holds_what_was_trained_and_no_more(full: Path, slim: Path) -> None:
    whole, kept = load_file(full), load_file(slim)
    left = set(whole) - set(kept)
    assert left == {
        name
        for name in whole
        if name.startswith(("backbone.model.embed_tokens", "backbone.model.layers.0.", "backbone.model.layers.1."))
    }
    assert all(torch.equal(whole[name], tensor) for name, tensor in kept.items())
    again = shrinking.shrink(slim, 1, out=slim.with_name("again.safetensors"))
    assert again.share == 1
    more = shrinking.shrink(full, 2, out=slim.with_name("more.safetensors"))
    assert any("layers.1." in name for name in load_file(more.path))
    assert set(checkpoint.evaluate_checkpoint(more.path).same.values()) == {1.0}


@pytest.mark.parametrize("rule", ["red", "red/plain", "moe"])
def test_a_checkpoint_can_be_narrowed_to_what_a_rule_reads(rule: str, full: Path, slim: Path, tmp_path: Path) -> None:
    made = shrinking.shrink(full, 1, out=tmp_path / "narrow.safetensors", rule=rule)
    assert made.after.bytes < slim.stat().st_size
    found = checkpoint.evaluate_checkpoint(made.path)
    form = {"red": "residual", "moe": "standalone"}[rule.split("/")[0]]
    assert {kept for kept, _ in found.banks} == {form}
    assert set(found.same.values()) == {1.0}
    assert any(name.startswith(rule) for name in found.same)


def test_a_rule_that_reads_no_bank_of_experts_narrows_nothing(full: Path, ask: Ask) -> None:
    for rule, word in (("global", "can be narrowed to"), ("red/nobody", "can be narrowed to"), ("x", "no rule 'x'")):
        refused(ask("shrink", full, LAYERS, 1, "--rule", rule), word)


def test_shrink_prints_parameters_and_bytes(full: Path, tmp_path: Path, ask: Ask) -> None:
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


def test_evaluate_takes_files_as_it_takes_runs(full: Path, slim: Path, blocks: redx.Run, ask: Ask, qwen: Path) -> None:
    wanted = ("--rule", "red", "--noise", "swap", "--level", "0.5", "--json")
    told = [json.loads(ask("evaluate", path, *wanted)[1]) for path in (blocks.folder, full, slim)]
    assert told[0]["rules"] == told[1]["rules"] == told[2]["rules"]
    code, out, _ = ask("evaluate", slim, "--backbone", qwen)
    assert code == 0
    assert "run's own: 1.0000" in out
    refused(ask("evaluate", blocks.folder, "--backbone", qwen), "--backbone")


def test_runs_without_trained_blocks_or_without_a_language_model(
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


# What is refused


def altered(path: Path, out: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> Path:
    """A checkpoint with something changed by hand."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = dict(file.metadata())
    change(tensors, about)
    save_file(tensors, out, about)
    return out


def test_refusals_of_export_and_shrink(full: Path, blocks: redx.Run, tmp_path: Path, ask: Ask) -> None:
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
        strange = altered(full, tmp_path / "strange.safetensors", lambda t, _: t.update({name: torch.ones(2)}))  # noqa: B023
        refused(ask("shrink", strange, LAYERS, 1), name, "--keep")
    loud = altered(full, tmp_path / "loud.safetensors", lambda t, _: t["base:classifier.weight"].fill_(1e6))
    refused(ask("shrink", loud, LAYERS, 1, "--dtype", "float16"), "too large", "bfloat16")
    assert not list(tmp_path.glob("*.slim*"))
    assert ask("shrink", loud, LAYERS, 1, "--dtype", "bfloat16")[0] == 0
    (tmp_path / "locked").write_text("")
    refused(ask("shrink", full, LAYERS, 1, "--out", tmp_path / "locked" / "x.safetensors"), "Cannot write")


def test_refusals_of_evaluate(slim: Path, full: Path, tmp_path: Path, ask: Ask) -> None:
    other = tiny_lm.qwen3(tmp_path / "other", seed=1)
    refused(ask("evaluate", slim, "--backbone", other), "not the one", "model.safetensors", "--backbone")

    def try_one(path: Path, change: Callable[[dict[str, Any], dict[str, str]], object], *words: str) -> None:
        refused(ask("evaluate", altered(path, tmp_path / "altered.safetensors", change)), *words)

    name = "backbone.model.layers.0.mlp.up_proj.weight"
    try_one(full, lambda t, _: t[name].add_(1), name, "backbone's")
    try_one(slim, lambda t, _: t.update({"backbone.secret": torch.ones(1)}), "secret")
    try_one(slim, lambda t, _: t.update({"other:x": torch.ones(1)}), "other:x")
    try_one(slim, lambda t, _: [t.pop(key) for key in list(t) if "layers.2." in key], "lacks")
    try_one(slim, lambda t, _: t.pop("base:bus.mean"), "base")
    try_one(slim, lambda t, _: t.update({"base:classifier.weight": torch.ones(3, 3)}), "do not fit")
    try_one(slim, lambda t, _: t.update({"integration:router.mean": torch.ones(3)}), "do not fit")
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


class Trap:
    """What a hostile pickle does when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def zipped(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def bad_files(folder: Path, full: Path, trap: Path) -> dict[Path, str]:
    """Hostile or damaged files, each with a word of its refusal."""
    good = full.read_bytes()
    files: dict[str, tuple[bytes, str]] = {
        "short.safetensors": (good[: len(good) // 2], "truncated"),
        "head.safetensors": (good[:20], "truncated"),
        "empty.safetensors": (b"", "truncated"),
        "long.safetensors": (b"\xff" * 7 + b"\x7f{" + good[9:], "truncated"),
        "bare.pt": (pickle.dumps(Trap(trap)), "pickle"),
        "text.pt": (pickle.dumps(Trap(trap), protocol=0), "pickle"),
        "renamed.safetensors": (pickle.dumps(Trap(trap)), "safetensors"),
    }
    found = {}
    for name, (content, word) in files.items():
        (folder / name).write_bytes(content)
        found[folder / name] = word
    torch.save({"head.weight": torch.ones(2, 2), "trap": Trap(trap)}, folder / "trap.pt")
    torch.save({"head.weight": torch.ones(2, 2)}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"head.weight": torch.ones(1).expand(10**9)}, folder / "spread.pt")
    big = torch.ones(1000)
    torch.save({f"head.{index}": big for index in range(100)}, folder / "many.pt")
    torch.save({"../x": torch.ones(2, 2)}, folder / "named.pt")
    torch.save({"head.\x1b[2J": torch.ones(2, 2)}, folder / "signs.pt")
    torch.save({"head": torch.ones(2, 2).to_sparse()}, folder / "sparse.pt")
    torch.save({"head": {1: torch.ones(1)}}, folder / "keys.pt")
    torch.save([torch.ones(1)], folder / "list.pt")
    torch.save({"epoch": 3}, folder / "nothing.pt")
    save_file({"../../x": torch.ones(1)}, folder / "named.safetensors")
    whole = io.BytesIO()
    torch.save({"head.weight": torch.ones(1000, 10)}, whole)
    (folder / "cut.pt").write_bytes(whole.getvalue()[:20000])
    with zipfile.ZipFile(whole) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    zipped(folder / "bomb.pt", {**members, "archive/data/1": bytes(50 * 2**20)}, zipfile.ZIP_DEFLATED)
    zipped(folder / "path.pt", {**members, "../../x": b"x"})
    zipped(folder / "root.pt", {**members, "/etc/x": b"x"})
    zipped(folder / "other.pt", {"readme.txt": b"x"})
    zipped(folder / "large.pt", {"archive/data.pkl": bytes(tensor_files.PROGRAM_BYTES + 1)})
    words = {"trap": "posix.mkdir", "legacy": "pickle", "spread": "unpacks to more", "many": "unpacks to more"}
    words |= {"named": "path", "signs": "hidden sign", "sparse": "no plain tensor", "keys": "does not know"}
    words |= {"list": "does not know", "nothing": "no tensors", "cut": "truncated", "bomb": "zip bomb"}
    words |= {"path": "path", "root": "path", "other": "torch.save", "large": "more than a list"}
    found |= {folder / f"{name}.pt": word for name, word in words.items()}
    return found | {folder / "named.safetensors": "path"}


def test_bad_files_get_one_sentence_and_run_nothing(full: Path, tmp_path: Path, ask: Ask) -> None:
    trap, folder = tmp_path / "trapped", tmp_path / "bad"
    folder.mkdir()
    for path, word in bad_files(folder, full, trap).items():
        refused(ask("inspect", path), path.name, word)
        refused(ask("shrink", path, LAYERS, 0), path.name, word)
        refused(ask("evaluate", path), path.name, word)
        assert not trap.exists(), path
    assert not list(folder.glob("*.slim*"))
    # in a folder they stand with what they are refused for
    found = inspection.inspect_path(folder)
    assert all(file.kind.startswith("refused: ") for file in found.files)


def test_an_archive_that_overlaps_itself_is_refused(tmp_path: Path, ask: Ask) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 5000)
        first = archive.infolist()[0]
        for index in range(100):  # many names for the same bytes
            again = zipfile.ZipInfo(f"archive/data/{index}")
            again.header_offset, again.file_size, again.compress_size = first.header_offset, 5000, 5000
            again.CRC = first.CRC
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True  # pyright: ignore[reportAttributeAccessIssue]
    (tmp_path / "overlap.pt").write_bytes(whole.getvalue())
    refused(ask("inspect", tmp_path / "overlap.pt"), "zip bomb")


# Files of others


def foreign(prefix: str) -> dict[str, torch.Tensor]:
    """A state dict in the style of the original scripts."""
    words = torch.randn(50, 8)
    layers = {
        f"{prefix}layers.{at}.{part}.weight": torch.randn(8, 8)
        for at in range(4)
        for part in ("self_attn.q_proj", "mlp.gate_proj", "input_layernorm")
    }
    outer = {f"{prefix}embed_tokens.weight": words, f"{prefix}norm.weight": torch.randn(8)}
    return layers | outer | {"head.weight": torch.randn(5, 8), "router.net.0.weight": torch.randn(8, 8)}


@pytest.mark.parametrize("prefix", ["backbone.", "model.", "backbone.model.", "module.backbone.", ""])
@pytest.mark.parametrize("wrap", [False, True])
def test_a_pt_in_the_style_of_the_scripts_is_shrunk(prefix: str, wrap: bool, tmp_path: Path, ask: Ask) -> None:
    state = foreign(prefix)
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
    assert told["about"][tensor_files.CHECKPOINT_KEY]["beside"] == ({"epoch": 10, "args": {"lr": 1e-4}} if wrap else {})
    refused(ask("evaluate", made), "no checkpoint of a run")


def test_what_a_pt_may_have_trained_is_not_dropped(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "x.pt"
    state = foreign("backbone.")
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


# To look at


def test_inspect_knows_all_our_files(
    blocks: redx.Run, full: Path, slim: Path, qwen: Path, ask: Ask, place: Path
) -> None:
    seed = blocks.folder / "seed-0"
    kinds = {
        blocks.folder: "run",
        seed: "one seed of a run",
        seed / "experts" / "range_2_20": "expert",
        seed / "experts" / "range_2_20" / "expert.safetensors": "expert",
        seed / "experts" / "range_2_20" / "expert.json": "facts of an expert",
        seed / "base.safetensors": "base",
        seed / "router.safetensors": "router",
        seed / "pooled.safetensors": "pooled heads",
        seed / "integration.safetensors": "residual experts and router after stage 4",
        next((seed / "parts").iterdir()): "parts",
        seed / "model.json": "facts of a model",
        blocks.folder / "config.json": "settings of a run",
        blocks.folder / "summary.json": "summary of a run",
        blocks.folder / "results.jsonl": "lines of JSON",
        qwen: "language model",
        qwen / "model.safetensors": "language model",
        next((place / "cache" / "features").iterdir()): "features shelf",
        next((place / "cache" / "embeddings").iterdir()): "array of features",
        full: "checkpoint, full",
        slim: "checkpoint, slim",
    }
    for path, kind in kinds.items():
        code, out, err = ask("inspect", path, "--json")
        assert code == 0, err
        told = json.loads(out)
        assert told["kind"] == kind, path
        for entry in told["tensors"]:
            assert set(entry) == {"name", "shape", "dtype", "numbers", "bytes"}
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            assert {entry["name"] for entry in told["tensors"]} == set(tensors)
            assert sum(entry["bytes"] for entry in told["tensors"]) == sum(t.nbytes for t in tensors.values())
            assert told["numbers"] == sum(t.numel() for t in tensors.values())
        code, out, _ = ask("inspect", path)
        assert code == 0
        assert kind in out


def test_inspect_reads_headers_alone(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch, "load", forbidden)
    monkeypatch.setattr(torch, "frombuffer", forbidden)
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert inspection.inspect_path(full).tensors > 10


def test_inspect_shows_a_pt_and_what_is_no_file_of_ours(tmp_path: Path, ask: Ask) -> None:
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
