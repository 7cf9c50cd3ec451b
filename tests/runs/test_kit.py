"""What the owner of an expert gets: features of the shared examples, and no calibration, choice or test example."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import redx
from redx.runs.folder import load_seed, read_config
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
    assert files["whole"] - files["owners"] == {"calibration.safetensors"}
    assert files["owners"] - files["public"] == {"shared.safetensors"}
    assert model.calibration_set is not None
    held = rows_of(model.calibration_set().inputs)
    for path in (tmp_path / "owners").glob("*.safetensors"):
        assert not any(row in path.read_bytes() for row in held)
    owners = redx.Model.from_pretrained(tmp_path / "owners")
    assert owners.anchor_data is not None
    assert owners.calibration_set is None
