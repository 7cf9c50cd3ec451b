"""What the owner of an expert gets: features of the shared examples, and no calibration, choice or test example."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import draw_clouds, write_arrays
from helpers.tampering import CHANGES, changed, scale_tensors
from redx.errors import RedxError
from redx.io.manifest import MANIFEST, Entry, format_manifest
from redx.models.expert import Expert
from redx.runs import editing
from redx.runs.admission import hash_rows
from redx.runs.folder import load_seed, read_config
from redx.runs.kit import LIMITS, read_kit, write_kit
from redx.training.datasets import read_features, read_shared, split_validation


def rows_of(inputs: torch.Tensor) -> set[bytes]:
    """Return the rows of a tensor as bytes."""
    return {row.tobytes() for row in inputs.numpy()}


def test_shared_examples_are_features_of_train_alone(clouds: redx.Run) -> None:
    seed = clouds.folder / "seed-0"
    shared, features = load_file(seed / "shared.safetensors"), read_features(seed / "features.safetensors")
    assert set(shared) == {"inputs", "labels", "domains"}
    assert rows_of(shared["inputs"]) <= rows_of(features.train.inputs)
    for split in (features.validation, features.test):
        assert not rows_of(shared["inputs"]) & rows_of(split.inputs)


@pytest.mark.slow
def test_shared_examples_of_texts_hold_no_text(addition: redx.Run) -> None:
    shared = read_shared(addition.folder / "seed-0" / "shared.safetensors")
    assert shared.inputs.dtype == torch.float32
    assert b"What is" not in (addition.folder / "seed-0" / "shared.safetensors").read_bytes()


def test_calibration_rows_come_from_the_features_of_the_run(clouds: redx.Run) -> None:
    config, seed = read_config(clouds.folder), clouds.folder / "seed-0"
    model, features = load_seed(seed, config), read_features(seed / "features.safetensors")
    assert model.calibration_set is not None
    _, rows = split_validation(features, config.ownership.calibration, 0)
    assert model.calibration_set().digest() == features.validation.only(rows).digest()


def test_a_saved_model_leaves_out_calibration_and_shared_examples_where_asked(clouds: redx.Run, tmp_path: Path) -> None:
    model = redx.load(clouds.folder)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "owners", calibration=False)
    model.save_pretrained(tmp_path / "public", calibration=False, shared=False)
    files = {name: {path.name for path in (tmp_path / name).iterdir()} for name in ("whole", "owners", "public")}
    assert files["whole"] - files["owners"] == {"calibration.safetensors", "choices.safetensors"}
    assert files["owners"] - files["public"] == {"shared.safetensors"}
    assert model.calibration_set is not None
    held = rows_of(model.calibration_set().inputs)
    for path in (tmp_path / "owners").glob("*.safetensors"):
        assert not any(row in path.read_bytes() for row in held)
    owners = redx.Model.from_pretrained(tmp_path / "owners")
    assert owners.anchor_data is not None
    assert owners.calibration_set is None


# --- kits


@pytest.fixture(scope="module")
def kit(clouds: redx.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit of the run on clouds."""
    path = tmp_path_factory.mktemp("kit") / "kit.zip"
    write_kit(clouds.folder, path)
    return path


def entries_of(path: Path) -> dict[str, bytes]:
    """Return the content of an archive by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path: Path, entries: dict[str, bytes], **entry: Any) -> Path:
    """Write an archive of these entries, each with other attributes than ours, and a manifest that lists them."""
    if MANIFEST in entries:
        others = {name: content for name, content in entries.items() if name != MANIFEST}
        listed = {name: Entry(sha256(content).hexdigest(), len(content)) for name, content in others.items()}
        entries = others | {MANIFEST: format_manifest(listed)}
    with zipfile.ZipFile(path, "w", entry.pop("compression", zipfile.ZIP_STORED)) as archive:
        for name, content in entries.items():
            about = zipfile.ZipInfo(name)
            about.compress_type = archive.compression
            for key, value in entry.items():
                setattr(about, key, value)
            archive.writestr(about, content)
    return path


def with_wide_experts(content: bytes) -> bytes:
    """Return a kit.json that asks for experts of 9999 × 9999 and more values."""
    about = json.loads(content)
    for settings in about["config"]["banks"].values():
        settings |= {"shape": "mlp", "hidden": 9999, "depth": 2}
    return json.dumps(about).encode()


def own_data(path: Path, seed: int = 7, count: int = 120) -> Path:
    """Write examples of a new owner."""
    arrays = draw_clouds(count, seed)
    return write_arrays(path, x=arrays["x"], y=arrays["y"])


def test_a_kit_holds_the_shared_features_and_nothing_else(clouds: redx.Run, kit: Path, tmp_path: Path) -> None:
    features = read_features(clouds.folder / "seed-0" / "features.safetensors")
    content = kit.read_bytes()
    shared = rows_of(read_shared(clouds.folder / "seed-0" / "shared.safetensors").inputs)
    for split in (features.train, features.validation, features.test):
        assert not any(row in content for row in rows_of(split.inputs) - shared)
    assert all(row in content for row in shared)
    assert str(clouds.folder.parent).encode() not in content
    again = tmp_path / "again.zip"
    inside = write_kit(clouds.folder, again)
    assert again.read_bytes() == content
    assert (inside["examples"], inside["domains"]) == (len(shared), ["0", "1", "2", "3"])
    assert inside["files"] == {name: len(value) for name, value in entries_of(kit).items()}
    with pytest.raises(RedxError, match=r"There is a file .*again.zip already"):
        write_kit(clouds.folder, again)


def test_no_tensor_of_a_kit_has_rows_of_calibration_examples(clouds: redx.Run, kit: Path) -> None:
    config, features = read_config(clouds.folder), read_features(clouds.folder / "seed-0" / "features.safetensors")
    _, held = split_validation(features, config.ownership.calibration, 0)
    calibration = features.validation.only(held).inputs
    width, hashes = calibration.shape[1], hash_rows(calibration, "salt")
    entries = entries_of(kit)
    tensors = [value for name in entries if name.endswith("safetensors") for value in load(entries[name]).values()]
    rows = [value.reshape(-1, width) for value in tensors if value.is_floating_point() and value.numel() % width == 0]
    assert len(hashes) > 10
    assert len(rows) > 1
    assert not any(torch.isin(hash_rows(value, "salt"), hashes).any() for value in rows)
    inside = torch.cat([*rows, calibration[:1].half()])  # one row in another precision is found
    assert torch.isin(hash_rows(inside, "salt"), hashes).sum() == 1


def test_an_owner_trains_with_the_kit_alone(clouds_copy: Path, tmp_path: Path) -> None:
    away = tmp_path / "owner"
    away.mkdir()
    write_kit(clouds_copy, away / "kit.zip")
    own_data(away / "own.npz")
    shutil.rmtree(clouds_copy)
    environment = {**os.environ, "HOME": str(away), "REDX_CACHE": str(away / "cache")}
    words = ("experts", "train", "--kit", "kit.zip", "--domain", "new", "--data", "own.npz", "--out", "new")
    subprocess.run([sys.executable, "-m", "redx", *words], check=True, cwd=away, env=environment, timeout=300)
    assert {path.name for path in (away / "new").iterdir()} == {
        "expert.json",
        "expert.safetensors",
        "manifest.json",
        "statistics.safetensors",
    }


def test_an_expert_trained_with_a_kit_is_that_of_the_run(clouds_copy: Path, kit: Path, tmp_path: Path) -> None:
    data = own_data(tmp_path / "own.npz")
    there = editing.train_expert(read_kit(kit), "new", data, tmp_path / "there")
    here = editing.train_expert(clouds_copy, "new", data, tmp_path / "here")
    assert there.info == here.info
    ours, theirs = here.tensors(), there.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "new" in editing.add_expert(clouds_copy, tmp_path / "there", force=True).experts


def test_the_commands_of_two_teams(clouds_copy: Path, tmp_path: Path, ask: Ask) -> None:
    kit, own = tmp_path / "kit.zip", ("--domain", "new", "--data", own_data(tmp_path / "own.npz"))
    out = succeeded(ask("experts", "kit", clouds_copy, "--out", kit))
    assert all(word in out for word in ("shared.safetensors", "no text", "calibration", "4 domains"))
    refused(ask("experts", "kit", clouds_copy, "--out", kit), "already")
    succeeded(ask("experts", "train", "--kit", kit, *own, "--out", tmp_path / "new"))
    refused(ask("experts", "train", clouds_copy, "--kit", kit, *own), "Give the folder of a run, or a kit")
    refused(ask("experts", "train", *own), "Give the folder of a run, or a kit")
    refused(ask("experts", "train", clouds_copy, *own, "--backbone", "x"), "--backbone goes with --kit")


@pytest.mark.slow
def test_a_kit_of_texts_needs_the_same_backbone(addition_copy: Path, qwen: Path, tmp_path: Path) -> None:
    kit = tmp_path / "kit.zip"
    write_kit(addition_copy, kit)
    assert b"What is" not in kit.read_bytes()
    assert str(qwen).encode() not in kit.read_bytes()
    with pytest.raises(RedxError, match=r"needs the backbone 'qwen', which is not here .* give its folder"):
        read_kit(kit)
    assert read_kit(kit, str(qwen)).check_base()["backbone"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda path, files: path.write_bytes(b"PK"), "is no archive"),
        (lambda path, files: rewrite(path, {**files, "../evil": b"x"}), "holds other files than a kit"),
        (lambda path, files: rewrite(path, {"/etc/kit.json": b"x", **files}), "holds other files than a kit"),
        (lambda path, files: rewrite(path, {"kit.json": files["kit.json"]}), "holds other files than a kit"),
        (lambda path, files: rewrite(path, files, external_attr=0o120777 << 16), "has a link"),
        (lambda path, files: rewrite(path, files, compression=zipfile.ZIP_DEFLATED), "a link, or a packed"),
        (lambda path, files: rewrite(path, files | {"kit.json": b"{}"}), "does not describe a kit"),
        (lambda path, files: rewrite(path, files | {"base.safetensors": b"x" * 100}), "base.safetensors"),
        (
            lambda path, files: rewrite(path, files | {"shared.safetensors": save({"inputs": torch.zeros(2, 3)})}),
            "is no shared subset",
        ),
        (
            lambda path, files: rewrite(
                path,
                files
                | {
                    "shared.safetensors": save(
                        {
                            "inputs": torch.zeros(2, 3),
                            "labels": torch.zeros(2, dtype=torch.long),
                            "domains": torch.zeros(2, dtype=torch.long),
                        }
                    )
                },
            ),
            "features that the base does not read",
        ),
        (
            lambda path, files: rewrite(path, files | {"kit.json": with_wide_experts(files["kit.json"])}),
            "asks for an expert of",
        ),
        (
            lambda path, files: rewrite(
                path, files | {"kit.json": files["kit.json"].replace(b'"base weights": "', b'"base weights": "0')}
            ),
            "base weights differ",
        ),
    ],
)
def test_a_kit_from_a_stranger_is_refused(
    kit: Path, tmp_path: Path, change: Callable[[Path, dict[str, bytes]], object], named: str
) -> None:
    path = tmp_path / "kit.zip"
    change(path, entries_of(kit))
    with pytest.raises(RedxError, match=named) as error:
        read_kit(path).check_base()
    assert str(error.value).count("\n") == 0
    assert "ask for the kit anew." in str(error.value) or "base weights" in named, "its reader has no run to repeat"
    assert "/tmp" not in str(error.value).replace(str(tmp_path), "")
    assert {file.name for file in tmp_path.iterdir()} == {"kit.zip"}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_an_edited_entry_of_a_kit_is_noticed(kit: Path, tmp_path: Path, name: str) -> None:
    folder, path = tmp_path / "kit" / "files", tmp_path / "kit.zip"
    folder.mkdir(parents=True)
    for entry, content in entries_of(kit).items():
        (folder / entry).write_bytes(content)
    tried = 0
    for change in CHANGES.values():
        with changed(folder / name, change) as differs:
            with zipfile.ZipFile(path, "w") as archive:
                for file in folder.iterdir():
                    archive.write(file, file.name)
            tried += differs
            with pytest.raises(RedxError) if differs else nullcontext():
                read_kit(path)
    assert tried >= 9


def test_damage_of_a_trained_expert_is_noticed(clouds_copy: Path, tmp_path: Path, ask: Ask) -> None:
    expert = tmp_path / "new"
    editing.train_expert(clouds_copy, "new", own_data(tmp_path / "own.npz"), expert)
    assert "every file" in succeeded(ask("verify", expert))
    silent = []
    for name in ("expert.json", "expert.safetensors", MANIFEST):
        for kind, change in CHANGES.items():
            with changed(expert / name, change) as differs:
                if not differs:
                    continue
                code, _, _ = ask("verify", expert)
                silent += [] if code else [(name, kind, "verify")]
                try:
                    Expert.load(expert).tensors()
                    silent.append((name, kind, "reader"))
                except RedxError:
                    pass
    assert silent == [(MANIFEST, "missing", "reader")], "an expert from a run's folder has no manifest"
    scale_tensors(expert / "expert.safetensors", 1.01)
    refused(ask("experts", "add", clouds_copy, expert), "is not as redx wrote it")
