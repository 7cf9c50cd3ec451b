"""Experts of a run folder: changes from Python keep the run consistent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import redx
from helpers.runs import RunCopy
from redx.errors import RedxError
from redx.io.safetensors_files import read_tensors
from redx.model import persistence
from redx.runs import editing


def test_python_changes_a_run_as_the_commands_do(run_copy: RunCopy) -> None:
    removed = editing.remove_expert(run_copy.folder, run_copy.names[1])
    assert removed == run_copy.removed(run_copy.names[1])
    assert editing.add_expert(run_copy.folder, removed).experts.names == run_copy.names
    assert persistence.read_info(run_copy.seed).routed == run_copy.names


def test_parts_are_rewritten_for_the_experts_that_are_left(clouds_copy: Path) -> None:
    names = redx.load(clouds_copy).experts.names
    editing.remove_expert(clouds_copy, names[0])
    parts = read_tensors(clouds_copy / "seed-0" / "parts" / "residual-plain.safetensors")
    assert parts["residuals"].shape[1] == len(names) - 1
    assert int(parts["domains"].max()) == len(names) - 1  # the domain without an expert comes last


def test_an_expert_is_replaced_by_its_own_copy(clouds_copy: Path) -> None:
    name = redx.load(clouds_copy).experts.names[0]
    before = redx.load(clouds_copy).experts[name].tensors()
    model, kept = editing.replace_expert(clouds_copy, name, clouds_copy / "seed-0" / "experts" / name)
    assert kept == clouds_copy / "seed-0" / "removed" / name
    after = model.experts[name].tensors()
    assert all(torch.equal(tensor, after[part]) for part, tensor in before.items())


def test_a_change_that_fails_leaves_the_run_as_it_was(clouds_copy: Path) -> None:
    files = {path: path.read_bytes() for path in clouds_copy.rglob("*.safetensors")}
    with pytest.raises(RedxError, match="no expert 'x'"):
        editing.remove_expert(clouds_copy, "x")
    assert files == {path: path.read_bytes() for path in clouds_copy.rglob("*.safetensors")}
