"""`redx certify --parts`: the outputs of any model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from helpers.commands import Ask, refused, succeeded
from helpers.parts import draw_parts, write_parts
from redx.composition.files import certify_parts


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A parts file of two hundred examples."""
    return write_parts(tmp_path / "outputs.npz", draw_parts(200, 3, 4))


def test_json_is_what_python_returns(ask: Ask, outputs: Path) -> None:
    words = ("--risk", "0.05", "--seed", "1", "--epsilon", "0.5", "--noise", "blur", "--level", "0.25")
    figures = json.loads(succeeded(ask("certify", "--parts", outputs, *words, "--json")))
    assert figures == certify_parts(outputs, risk=0.05, seed=1, epsilons=[0.5], kinds=["blur"], levels=[0.25]).figures


def test_tables_promise_and_radii(ask: Ask, outputs: Path, tmp_path: Path) -> None:
    held = write_parts(tmp_path / "held.safetensors", draw_parts(150, 3, 4, seed=1))
    words = ("--risk", "0.1", "--calibration", held, "--confidence", "0.9", "--out", tmp_path / "radii.npz")
    out = succeeded(ask("certify", "--parts", outputs, *words))
    assert "from 150 examples of the calibration file" in out
    assert "No router harms more than 0.1 of the examples, with probability 0.9." in out
    for word in ("breakable", "swap", "with the cut-off", "domain"):
        assert word in out
    with numpy.load(tmp_path / "radii.npz") as radii:
        assert radii["rows"].tolist() == list(range(200))
        assert radii["radius"].shape == radii["predicted"].shape == (200,)


def test_standalone_experts(ask: Ask, outputs: Path) -> None:
    assert json.loads(succeeded(ask("certify", "--parts", outputs, "--rule", "uniform", "--json")))["base"] is None
    refused(ask("certify", "--parts", outputs, "--rule", "uniform", "--risk", "0.1"), "adds no residuals")


def test_mistakes_get_one_sentence(ask: Ask, outputs: Path, clouds_copy: Path, tmp_path: Path) -> None:
    refused(ask("certify"), "folder of a finished run, or --parts")
    refused(ask("certify", clouds_copy, "--parts", outputs), "not both")
    refused(ask("certify", clouds_copy, "--risk", "0.1"), "--risk goes with --parts")
    refused(ask("certify", "--parts", outputs, "--share", "0.5"), "--share needs a risk")
    refused(
        ask("certify", "--parts", outputs, "--risk", "0.1", "--share", "0.2", "--calibration", outputs), "leave one"
    )
    refused(ask("certify", "--parts", tmp_path / "nowhere.npz"), "There is no", "nowhere.npz")
    refused(ask("certify", "--parts", outputs, "--out", tmp_path / "radii.csv"), "ends in .npz")
    assert not (tmp_path / "radii.csv").exists()
    bad = tmp_path / "bad.npz"
    numpy.savez(bad, base=numpy.zeros((2, 2)))
    refused(ask("certify", "--parts", bad, "--out", tmp_path / "radii.npz"), "no array 'residuals'")
    assert not (tmp_path / "radii.npz").exists()
