"""The parts of a run on disk: complete, of one state, with their own names of domains."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import redx
from redx.errors import RedxError
from redx.io.files import write_tensors
from redx.io.safetensors_files import read_tensors
from redx.runs.editing import remove_expert
from redx.runs.parts import read_parts


@pytest.mark.usefixtures("unverified")
def test_parts_name_their_domains(clouds_copy: Path) -> None:
    assert read_parts(clouds_copy, 0).domains == ("0", "1", "2", "3")
    remove_expert(clouds_copy, "1")
    assert read_parts(clouds_copy, 0).domains == ("0", "2", "3", "1")
    shutil.rmtree(clouds_copy / "seed-0" / "experts" / "0")  # the names do not come from the folder
    assert read_parts(clouds_copy, 0).domains == ("0", "2", "3", "1")


def test_a_missing_bank_is_refused_and_the_run_computes_it_again(clouds: redx.Run, clouds_copy: Path) -> None:
    file = clouds_copy / "seed-0" / "parts" / "residual-plain.safetensors"
    before = file.read_bytes()
    file.unlink()
    with pytest.raises(RedxError, match=r"lacks residual-plain\.safetensors"):
        read_parts(clouds_copy, 0)
    config = redx.load(clouds_copy).config
    assert config.table  # pyright: ignore
    epochs = {"base": 3, "experts": 2, "router": 2}
    redx.run("features", "quick", out=clouds_copy, file=config.table.file, study="none", epochs=epochs)  # pyright: ignore
    assert file.read_bytes() == before


@pytest.mark.usefixtures("unverified")
def test_parts_of_different_states_are_refused(clouds_copy: Path) -> None:
    parts = clouds_copy / "seed-0" / "parts"
    old = (parts / "residual-plain.safetensors").read_bytes()
    remove_expert(clouds_copy, "1")
    (parts / "residual-plain.safetensors").write_bytes(old)
    with pytest.raises(RedxError, match="different states"):
        read_parts(clouds_copy, 0)


@pytest.mark.usefixtures("unverified")
def test_parts_of_an_older_version_are_read(clouds_copy: Path) -> None:
    before = read_parts(clouds_copy, 0)
    for path in (clouds_copy / "seed-0" / "parts").iterdir():
        write_tensors(path, read_tensors(path))
    after = read_parts(clouds_copy, 0)
    assert after.domains == before.domains
    assert after.banks.keys() == before.banks.keys()
