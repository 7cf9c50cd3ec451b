"""Models and experts go to the Hugging Face Hub and come back, against a local stand-in of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

import redx
from helpers.hub import TOKEN, Hub, run_hub
from helpers.own_encoder import composed_model, draw_images, own_encoder
from redx.errors import RedxError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with run_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("REDX_CACHE", str(tmp_path / "redx"))
        monkeypatch.chdir(tmp_path)
        yield server


@pytest.fixture(scope="module")
def model() -> redx.Model:
    return composed_model()


def test_a_model_goes_to_the_hub_and_comes_back(model: redx.Model, hub: Hub, tmp_path: Path) -> None:
    address = model.push_to_hub("me/digits", private=True, token=TOKEN)
    assert address.startswith(f"{hub.address}/me/digits")
    files = hub.repositories["me/digits"]
    assert hub.private["me/digits"]
    assert {"README.md", "config.json", "model.json", "base.safetensors", "risk.json"} <= set(files)
    assert "experts/cars/expert.safetensors" in files
    assert not {"shared.safetensors", "calibration.safetensors"} & set(files)  # no examples leave unless asked
    assert "library_name: redx" in files["README.md"].decode()
    again = redx.Model.from_pretrained("me/digits", backbone=own_encoder())
    x = draw_images(50, 4).x
    assert torch.equal(again(x), model(x))
    with pytest.raises(RedxError, match="made with another backbone"):
        redx.Model.from_pretrained("me/digits", backbone=own_encoder(seed=1))
    model.push_to_hub("me/digits", token=TOKEN, calibration=True)  # again, with examples
    assert "calibration.safetensors" in files


def test_an_expert_is_added_by_its_name_on_the_hub(model: redx.Model, hub: Hub, tmp_path: Path) -> None:
    model.experts["cars"].save(tmp_path / "cars")
    hub.repositories["owner/cars"] = {path.name: path.read_bytes() for path in (tmp_path / "cars").iterdir()}
    hub.repositories["owner/cars"]["malware.py"] = b"raise SystemExit"
    x, removed = draw_images(50, 4).x, model.remove_expert("cars")
    try:
        assert model.add_expert("owner/cars") == "cars"
        assert torch.equal(model.experts["cars"].tensors()["ownership.down"], removed.tensors()["ownership.down"])
        assert len(model.predict(x)) == 50
        assert not list(tmp_path.rglob("malware.py"))  # only files that hold no code are fetched
    finally:
        if "cars" not in model.experts:
            model.add_expert(removed)


def test_what_fails_on_the_hub_is_one_sentence(model: redx.Model, hub: Hub) -> None:
    with pytest.raises(RedxError, match=r"could not be uploaded as me/digits \(.*\); check the name and your token"):
        model.push_to_hub("me/digits", token="hf_wrong")
    with pytest.raises(RedxError, match=r"no folder me/nothing, and the hub has no such repository"):
        redx.Model.from_pretrained("me/nothing", backbone=own_encoder())
    hub.repositories["me/other"] = {"config.json": json.dumps({"model_type": "bert"}).encode()}
    with pytest.raises(RedxError, match=r"me/other holds no model.json, so it is nothing that redx wrote"):
        redx.Model.from_pretrained("me/other", backbone=own_encoder())
    with pytest.raises(RedxError, match="could not be uploaded"):
        model.push_to_hub("not a name", token=TOKEN)
