"""Experts as files: what describes them, when they are read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import redx
from redx.errors import RedxError
from redx.io.files import write_json
from redx.io.reading import read_json
from redx.models.expert import Expert


@pytest.fixture
def folder(clouds_copy: Path) -> Path:
    """The folder of one expert, which a test may change."""
    return clouds_copy / "seed-0" / "experts" / "0"


@pytest.mark.slow
def test_the_file_of_an_expert_on_texts_describes_it(addition: redx.Run) -> None:
    info = json.loads((addition.folder / "seed-0" / "experts" / "range_2_20" / "expert.json").read_text())
    assert info["domain"] == "range_2_20"
    assert set(info["classes"]) <= {str(answer) for answer in range(2, 21)}
    assert set(info["base"]) >= {"base weights", "backbone", "tokenizer", "feature settings", "classes", "probe"}
    assert all(info["training"].values())
    assert info["ownership"]["score"] in ("classes", "binary")


def test_the_file_of_an_expert_describes_it(folder: Path) -> None:
    info = Expert.load(folder).info
    assert info["domain"] == "0"
    assert set(info["classes"]) <= {"high", "low"}
    assert set(info["base"]) >= {"base weights", "backbone", "tokenizer", "feature settings", "classes", "probe"}
    assert all(info["training"].values())
    assert info["ownership"]["score"] in ("classes", "binary")


def test_an_opened_expert_is_read_when_it_is_first_needed(folder: Path) -> None:
    expert = Expert.open(folder)
    assert not expert.loaded
    assert expert.name == "0"
    names = expert.tensor_names()
    assert not expert.loaded  # names alone are in the header of the file
    banks = {name.partition(".")[0] for name in names}
    assert banks >= {"residual/plain", "residual/anchored", "ownership"}
    assert set(expert.tensors("residual/plain")) == {
        name.removeprefix("residual/plain.") for name in names if name.startswith("residual/plain.")
    }


def test_a_saved_expert_is_the_same_expert(folder: Path, tmp_path: Path) -> None:
    expert = Expert.load(folder)
    expert.save(tmp_path / "saved")
    again = Expert.load(tmp_path / "saved")
    assert again.info == expert.info
    tensors = expert.tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.tensors().items())


@pytest.mark.usefixtures("unverified")
def test_what_is_no_expert_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="is not there; give the folder of an expert"):
        Expert.load(tmp_path / "nowhere")
    with pytest.raises(RedxError, match="is a file; give the folder of an expert"):
        Expert.load(folder / "expert.json")
    info = read_json(folder / "expert.json")
    write_json(folder / "expert.json", {key: value for key, value in info.items() if key != "domain"})
    with pytest.raises(RedxError, match="names no domain"):
        Expert.load(folder)
    write_json(folder / "expert.json", info | {"domain": "../x"})
    with pytest.raises(RedxError, match="cannot be called"):
        Expert.load(folder)
    (folder / "expert.safetensors").rename(folder / "expert.pt")
    with pytest.raises(RedxError, match="unpickling runs"):
        Expert.load(folder)


def test_nan_in_a_tensor_is_refused_by_name(folder: Path) -> None:
    expert = Expert.load(folder)
    tensors = expert.tensors()
    name = next(iter(tensors))
    broken = Expert(expert.info, tensors | {name: tensors[name] * torch.nan})
    with pytest.raises(RedxError, match=f"contains NaN or infinity in {name}"):
        broken.tensors()


@pytest.mark.usefixtures("own_cache")
def test_files_of_an_expert_may_be_links_in_the_cache_of_the_hub_alone(
    clouds_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache keeps files as links; a folder that somebody sends is not followed out of."""
    import huggingface_hub

    model, snapshot = redx.load(clouds_copy), tmp_path / "snapshot"
    model.remove_expert("0").save(tmp_path / "blobs")
    snapshot.mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (snapshot / path.name).symlink_to(path)
    with pytest.raises(RedxError, match="is a symbolic link"):
        model.add_expert(snapshot)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    assert model.add_expert("owner/expert") == "0"
