"""Models as folders: what is saved is loaded bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import redx
from helpers.models import LoadedModel
from redx.errors import RedxError
from redx.model import persistence
from redx.models.encoder import build_encoder
from redx.runs.folder import read_config


def test_a_saved_model_is_the_same_model(loaded: LoadedModel, tmp_path: Path) -> None:
    model = loaded.model
    names = model.experts.names
    model.save_pretrained(tmp_path / "saved")
    again = LoadedModel(redx.load(tmp_path / "saved"), loaded.inputs)
    assert torch.equal(again.scores(), loaded.scores())
    card = (tmp_path / "saved" / "README.md").read_text()
    assert all(name in card for name in names)
    assert "certified ε = 1" in card
    with pytest.raises(RedxError, match="not empty"):
        model.save_pretrained(tmp_path / "saved")
    model.experts.remove(names[3])
    model.save_pretrained(tmp_path / "fewer")
    fewer = LoadedModel(redx.load(tmp_path / "fewer"), loaded.inputs)
    assert torch.equal(fewer.scores(), loaded.scores())


def test_the_parts_of_a_model_are_read_one_by_one(clouds: redx.Run) -> None:
    config, folder = read_config(clouds.folder), clouds.folder / "seed-0"
    info = persistence.read_info(folder)
    base = persistence.read_base(folder, build_encoder(config))
    library = persistence.read_library(folder, config, base, info)
    assert library.names == info.domains == info.routed == persistence.read_domain_names(folder)
    assert base.outputs == len(info.classes)
    assert persistence.read_router(folder, config, base, info).experts == info.routed


@pytest.mark.usefixtures("unverified")
def test_files_that_are_missing_or_do_not_fit_are_refused(clouds_copy: Path) -> None:
    config, folder = read_config(clouds_copy), clouds_copy / "seed-0"
    base, info = persistence.read_base(folder, build_encoder(config)), persistence.read_info(folder)
    other = config.model_copy(update={"router": config.router.model_copy(update={"hidden": 7})})
    with pytest.raises(RedxError, match=r"router\.safetensors does not fit this model"):
        persistence.read_router(folder, other, base, info)
    (folder / "base.safetensors").unlink()
    with pytest.raises(RedxError, match=r"There is no .*base\.safetensors"):
        persistence.read_base(folder, build_encoder(config))
    (folder / "experts").rename(folder / "moved")
    with pytest.raises(RedxError, match="There are no experts"):
        persistence.read_library(folder, config, base, info)
