"""What a run costs is counted and measured where there is a backbone, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

import redx
from redx.io.files import write_json
from redx.runs.costs import _count_backbone, _kept, count_parameters


def test_a_run_on_features_has_no_backbone_to_compare_with(clouds: redx.Run) -> None:
    cost = clouds.summary["cost"]
    assert not {"composing", "passes", "backbone_parameters"} & set(cost)
    assert cost["parameters"] == count_parameters(redx.load(clouds.folder))
    assert set(cost["parameters"]) >= {"base", "router", "ownership", "residual/anchored"}


def test_a_measurement_is_kept_for_the_same_number_of_experts(tmp_path: Path) -> None:
    assert _kept(tmp_path, 5) is None
    measured = {"experts": 5, "share": 0.1}
    write_json(tmp_path / "summary.json", {"cost": {"composing": measured}})
    assert _kept(tmp_path, 5) == measured
    assert _kept(tmp_path, 6) is None
    write_json(tmp_path / "summary.json", {"rules": []})
    assert _kept(tmp_path, 5) is None


def test_the_parameters_of_a_language_model_are_counted_from_its_files(qwen: Path, tmp_path: Path) -> None:
    tensors = [tensor for path in qwen.glob("*.safetensors") for tensor in load_file(path).values()]
    assert _count_backbone(qwen) == sum(tensor.numel() for tensor in tensors) > 0
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    assert _count_backbone(tmp_path) == 0


@pytest.mark.slow
def test_a_run_on_texts_states_passes_and_the_share_of_composing(addition: redx.Run) -> None:
    cost = addition.summary["cost"]
    here, loop = cost["passes"].values()
    assert 0 < here < loop
    assert cost["backbone_parameters"] > 0
    composing = cost["composing"]
    assert composing["experts"] == len(redx.load(addition.folder).experts)
    assert composing["share"] == pytest.approx(composing["composing_seconds"] / composing["backbone_seconds"])
    text = (addition.folder / "report.md").read_text()
    assert "Composing adds" in text or "composing adds" in text
