"""Parts files: what any model may write is read exactly, and everything else is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from helpers.parts import draw_parts, write_parts
from redx.composition.files import parts_from_arrays, read_parts_file
from redx.errors import RedxError


def arrays(**changes: Any) -> dict[str, Any]:
    """Return valid arrays of six examples, three experts and four classes, with some of them exchanged."""
    valid = {name: tensor.numpy() for name, tensor in draw_parts(6, 3, 4).tensors().items()}
    return {name: array for name, array in (valid | changes).items() if array is not None}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_file_gives_back_what_was_written(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    parts = draw_parts(9, 3, 4, dtype=dtype)
    read = read_parts_file(write_parts(tmp_path / f"outputs{suffix}", parts, confidences=True))
    for name, tensor in parts.tensors().items():
        assert torch.equal(getattr(read, name), tensor), name
    assert read.confidences is not None
    assert torch.equal(read.confidences, parts.gates + 1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("f2", "float32"), ("f4", "float32"), ("f8", "float64"), (">f4", "float32"), ("i2", "float32"), ("i4", "float64")],
)
def test_numbers_keep_their_values_and_at_least_their_precision(given: str, kept: str) -> None:
    names = ("base", "residuals", "gates")
    changes = {name: numpy.asfortranarray(numpy.round(4 * arrays()[name])).astype(given) for name in names}
    parts = parts_from_arrays(arrays(**changes))
    for name in names:
        tensor = getattr(parts, name)
        assert str(tensor.dtype) == f"torch.{kept}"
        assert (tensor.numpy() == changes[name]).all()


def test_one_array_of_float64_makes_all_of_them_float64() -> None:
    parts = parts_from_arrays(arrays(gates=numpy.zeros((6, 3), "f4")))
    assert parts.gates.dtype == parts.base.dtype == torch.float64


def test_a_regression_has_any_whole_answers() -> None:
    one = {"base": numpy.zeros((6, 1)), "residuals": numpy.zeros((6, 3, 1))}
    assert parts_from_arrays(arrays(**one, labels=numpy.arange(-3, 3))).true_labels().tolist() == [-3, -2, -1, 0, 1, 2]
    with pytest.raises(RedxError, match="lie between"):
        parts_from_arrays(arrays(**one, labels=numpy.full(6, 2**60)))


def nan(name: str) -> dict[str, Any]:
    """Return the change that puts NaN into an array."""
    return {name: numpy.full(arrays(confidences=arrays()["gates"])[name].shape, numpy.nan)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gates": None}, "There is no array 'gates'"),
        (
            {"gates": numpy.zeros((6, 2))},
            "'gates' given has shape (6, 2), but residuals of shape (6, 3, 4) need (6, 3)",
        ),
        ({"base": numpy.zeros((6, 3, 4))}, "'base' given has shape (6, 3, 4), not (N, C)"),
        ({"labels": numpy.zeros(5, int)}, "'labels' given has shape (5,)"),
        ({"labels": numpy.array([0, 1, 2, 3, 4, 0])}, "Row 4 of the array 'labels' given holds 4"),
        ({"labels": numpy.array([0, 1, -2, 3, 1, 0])}, "Row 2 of the array 'labels' given holds -2"),
        ({"labels": numpy.zeros(6)}, "'labels' given holds float64, not whole numbers"),
        ({"labels": numpy.full(6, 2**63, "u8")}, "beyond 2^53"),
        ({"labels": numpy.array(["a"] * 6)}, "not whole numbers"),
        ({"base": numpy.array([[None] * 4] * 6)}, "'base' given holds object, not float32 or float64"),
        ({"base": numpy.zeros((6, 4), complex)}, "holds complex128"),
        ({"base": numpy.zeros((6, 4), "f16")}, "not float32 or float64"),
        ({"base": numpy.zeros((6, 4), bool)}, "holds bool"),
        ({"base": numpy.full((6, 4), 1e16)}, "beyond 1e15; write finite logits"),
        ({"gates": numpy.full((6, 3), -numpy.inf)}, "write a gate of a masked expert as -1e4"),
        (nan("residuals"), "'residuals' given holds NaN"),
        (nan("confidences"), "'confidences' given holds NaN"),
        ({"confidences": numpy.zeros((6, 4))}, "'confidences' given has shape"),
        ({"residuals": numpy.zeros((6, 0, 4)), "gates": numpy.zeros((6, 0))}, "at least one of each"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_get_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RedxError) as error:
        parts_from_arrays(arrays(**changes))
    assert words in str(error.value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_files_that_are_no_parts_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match=r"ends in \.npz"):
        read_parts_file(tmp_path / "outputs.pt")
    for suffix in (".npz", ".safetensors"):
        with pytest.raises(RedxError, match="There is no"):
            read_parts_file(tmp_path / f"nowhere{suffix}")
        damaged = tmp_path / f"damaged{suffix}"
        damaged.write_bytes(write_parts(tmp_path / f"outputs{suffix}", draw_parts()).read_bytes()[:-40])
        with pytest.raises(RedxError, match="damaged"):
            read_parts_file(damaged)
    numpy.savez(tmp_path / "few.npz", base=numpy.zeros((2, 2)))
    with pytest.raises(RedxError, match="has no array 'residuals', only base"):
        read_parts_file(tmp_path / "few.npz")
    numpy.savez(tmp_path / "objects.npz", **arrays(labels=numpy.array([{}] * 6)))
    with pytest.raises(RedxError, match="Python objects"):
        read_parts_file(tmp_path / "objects.npz")


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    numpy.savez_compressed(path, **arrays(residuals=numpy.zeros((6, 3, 6 * 10**6), "u1")))
    assert path.stat().st_size < 10**6
    with pytest.raises(RedxError, match="unpacks to"):
        read_parts_file(path)
    numpy.savez_compressed(path, **arrays(residuals=numpy.zeros((6, 3, 2 * 10**6))))  # 288 MB, of which the gate lets
    with pytest.raises(RedxError, match="more than 209,715,200"):  # 400 MB pass, but a certificate needs several copies
        read_parts_file(path)
