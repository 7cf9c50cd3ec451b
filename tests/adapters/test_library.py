"""The library: what may be added, transactions, and one sentence for everything that may not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.adapters import save_adapter
from helpers.language_models import save_qwen3
from redx.adapters import library as module
from redx.adapters.base import BaseLM, load_base
from redx.adapters.composed import ComposedLM
from redx.adapters.library import add_adapter, open_base, read_library, remove_adapter
from redx.errors import RedxError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def contents(folder: Path) -> dict[str, bytes]:
    """Return all visible files of a folder with their content."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_add_list_remove(library: Path, base: BaseLM, adapter_folders: dict[str, Path]) -> None:
    before = read_library(library)
    assert before.names == ["a", "b", "c"]
    assert before.fingerprint == base.fingerprint
    assert {entry.rank for entry in before.adapters} == {2}
    assert before.adapters[0].modules == ("q_proj", "up_proj", "v_proj")
    assert len({entry.hash for entry in before.adapters}) == 3
    kept = remove_adapter(library, "b")
    assert read_library(library).names == ["a", "c"]
    assert (kept / WEIGHTS).read_bytes() == (adapter_folders["b"] / WEIGHTS).read_bytes()
    add_adapter(library, kept, base, "b")
    assert read_library(library).adapters[-1].hash == before.adapters[1].hash
    remove_adapter(library, "b")  # a second time with the same hash
    assert read_library(library).names == ["a", "c"]


def test_library_is_loaded_as_it_was_added(library: Path, composed: ComposedLM) -> None:
    loaded = ComposedLM.from_pretrained(library)
    weights = [0.1, 0.2, 0.7]
    assert torch.equal(loaded.scores("abc", weights=weights), composed.scores("abc", weights=weights))


def test_changed_adapter_is_refused(library: Path) -> None:
    path = library / "adapters" / "a" / WEIGHTS
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(RedxError, match="was changed after it was added"):
        ComposedLM.from_pretrained(library)


def test_other_base_is_refused(library: Path, tmp_path: Path) -> None:
    other = save_qwen3(tmp_path / "other", seed=1)  # the same shapes, other weights
    with pytest.raises(RedxError, match="is not the base of these adapters"):
        open_base(read_library(library), str(other))
    adapter = save_adapter(other, tmp_path / "d", 5)
    before = contents(library)
    with pytest.raises(RedxError, match="holds adapters of another base"):
        add_adapter(library, adapter, load_base(str(other)), "d")
    assert contents(library) == before


def test_two_of_one_name(library: Path, base: BaseLM, adapter_folders: dict[str, Path]) -> None:
    before = contents(library)
    with pytest.raises(RedxError, match="There is an adapter 'A'"):
        add_adapter(library, adapter_folders["b"], base, "A")  # some disks do not tell a from A
    assert contents(library) == before


def test_full_disk_changes_nothing(
    library: Path, base: BaseLM, adapter_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = contents(library), module.write_json

    def fail(path: Path, value: object) -> None:
        raise RedxError("the disk is full")

    monkeypatch.setattr(module, "write_json", fail)
    with pytest.raises(RedxError, match="the disk is full"):
        add_adapter(library, adapter_folders["a"], base, "d")
    with pytest.raises(RedxError, match="the disk is full"):
        remove_adapter(library, "a")
    monkeypatch.setattr(module, "write_json", write)
    assert contents(library) == before


def test_folder_of_something_else_is_refused(tmp_path: Path, base: BaseLM, adapter_folders: dict[str, Path]) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(RedxError, match="holds no library"):
        add_adapter(tmp_path / "notes", adapter_folders["a"], base)
    with pytest.raises(RedxError, match="give a folder that `redx run adapters`"):
        read_library(tmp_path / "nowhere")


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        settings = json.loads((folder / CONFIG).read_text()) | changes
        (folder / CONFIG).write_text(json.dumps(settings))

    return change


def change_tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        edit(tensors)
        save_file(tensors, folder / WEIGHTS)

    return change


def make_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")


def drop(tensors: dict[str, torch.Tensor], part: str) -> None:
    for name in [name for name in tensors if part in name]:
        del tensors[name]


def shrink(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name] = tensors[name][:1].clone()


def widen(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if "lora_A" in name]:
        tensors[name] = torch.zeros(tensors[name].shape[0], 48)


def move(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in list(tensors):
        tensors[name.replace(old, new)] = tensors.pop(name)


def add_bias(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name.replace("weight", "bias")] = torch.zeros(tensors[name].shape[0])


def add_stranger(tensors: dict[str, torch.Tensor]) -> None:
    tensors["base_model.model.lm_head.weight"] = torch.zeros(2, 2)


def spoil(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = float("nan")


BAD = {
    "pickle only": (make_pickle, "unpickling runs whatever code"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "There is no adapter_model.safetensors"),
    "no settings": (lambda folder: (folder / CONFIG).unlink(), "There is no adapter_config.json"),
    "damaged settings": (lambda folder: (folder / CONFIG).write_text("{"), "truncated or not JSON"),
    "damaged weights": (lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 40), "not a safetensors file"),
    "another method": (change_config(peft_type="PREFIX_TUNING"), "peft cannot choose per row"),
    "dora": (change_config(use_dora=True), "use_dora"),
    "saved modules": (change_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "biases": (change_config(bias="all"), "trains biases"),
    "code": (change_config(auto_mapping={"base_model_class": "X"}), "never runs"),
    "changed base": (change_config(init_lora_weights="pissa"), "changes the base as well"),
    "missing target module": (change_config(target_modules=["q_proj", "qkv"]), "modules called 'qkv'"),
    "target without weights": (
        change_tensors(lambda t: drop(t, "v_proj")),
        "no weights for its target module 'v_proj'",
    ),
    "half a pair": (change_tensors(lambda t: drop(t, "layers.0.self_attn.q_proj.lora_B")), "lacks lora_B.weight of"),
    "rank of settings": (change_config(r=3), "has 2 x 32 values as lora_A.weight .* takes 3 x 32"),
    "rank of one matrix": (change_tensors(shrink), "has 1 x 32 values as lora_A.weight"),
    "rank that is no number": (change_config(r="two"), "does not hold settings of LORA"),
    "rank of a pattern": (change_config(rank_pattern={"q_proj": 10**9}), "does not hold settings of LORA"),
    "weight of no layer": (
        change_tensors(lambda t: move(t, "mlp.up_proj", "input_layernorm")),
        "which .* does not have",
    ),
    "bias that is not named": (change_tensors(add_bias), "which its settings do not name"),
    "tensor of another kind": (change_tensors(add_stranger), "no tensor of an adapter"),
    "other width": (change_tensors(widen), "trained on another model"),
    "other depth": (change_tensors(lambda t: move(t, "layers.2", "layers.9")), "which .* does not have"),
    "NaN": (change_tensors(spoil), "NaN or infinity"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_adapter(case: str, base: BaseLM, adapter_folders: dict[str, Path], tmp_path: Path) -> None:
    spoil_folder, words = BAD[case]
    folder = tmp_path / "bad"
    shutil.copytree(adapter_folders["a"], folder)
    spoil_folder(folder)
    with pytest.raises(RedxError, match=words) as caught:
        add_adapter(tmp_path / "run", folder, base)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_whole_model_is_no_adapter(base: BaseLM, model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="a whole model and not an adapter"):
        add_adapter(tmp_path / "run", model_folder, base)
    with pytest.raises(RedxError, match="There is no folder"):
        add_adapter(tmp_path / "run", tmp_path / "nowhere", base)


def test_a_library_that_is_refused_leaves_the_base_as_it_was(library: Path, base: BaseLM) -> None:
    last = library / "adapters" / "c" / WEIGHTS
    good = last.read_bytes()
    last.write_bytes(good[:-8])
    with pytest.raises(RedxError):
        ComposedLM.from_library(library, base)
    last.write_bytes(good)
    composed = ComposedLM.from_library(library, base)
    try:
        assert composed.names == ["a", "b", "c"]
    finally:
        composed.stack.close()
