"""Parts files: the arrays of a `Parts` record in an .npz or a safetensors file, which any model can write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from redx.composition.parts import Parts
from redx.errors import RedxError
from redx.io.array_files import read_npz
from redx.io.safetensors_files import open_safetensors

if TYPE_CHECKING:
    import numpy

AXES = {"base": "N, C", "residuals": "N, K, C", "gates": "N, K", "labels": "N,", "domains": "N,", "confidences": "N, K"}
NEEDED = ("base", "residuals", "gates", "labels", "domains")
MEMORY = 2**33  # bytes of all arrays as float64
SMALL_BYTES, EXPANSION = 200 * 2**20, 4  # what any file may take, and how many times its size a larger one
LARGEST = 1e15  # of any number: squares of it still fit into float32
LARGEST_INDEX = 2**53  # of a regression's answer or of a domain
ADVICE = "write it anew with numpy.savez or safetensors.numpy.save_file"


def read_parts_file(path: Path | str) -> Parts:
    """Return the record in a parts file; nothing is unpickled.

    Parameters
    ----------
    path
        An .npz or .safetensors file with the arrays base (N, C), residuals (N, K, C), gates (N, K), labels (N,),
        domains (N,) and, if there are any, confidences (N, K). Other arrays are not read.

    Returns
    -------
    Parts
        The record in float64 if any array of numbers is float64 or has integers of more than 16 bits, else in float32.

    Raises
    ------
    RedxError
        If the file is damaged or too large, lacks an array, or holds arrays that do not belong together.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise RedxError(f"{path} is no parts file; give a file that ends in .npz or .safetensors.")
    if path.suffix == ".npz":
        arrays: Mapping[str, Any] = read_npz(path, NEEDED, ("confidences",), MEMORY)
    else:
        arrays = _read_safetensors(path)
    memory = sum(math.prod(array.shape) * _itemsize(array) for array in arrays.values())
    if memory > (limit := max(SMALL_BYTES, EXPANSION * path.stat().st_size)):
        raise RedxError(f"{path} unpacks to {memory:,} bytes, more than {limit:,}; give fewer examples or float32.")
    return parts_from_arrays(arrays, f"of {path}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    missing = "give a file with the arrays base, residuals, gates, labels and domains"
    with open_safetensors(path, advice=ADVICE, missing=missing, strict=True) as file:
        if absent := [name for name in NEEDED if name not in file.header]:
            available = ", ".join(f"{name[:80]!a}" for name in list(file.header)[:20]) or "none"
            raise RedxError(f"{path} has no array {absent[0]!r}, only {available}; add it.")
        names = [name for name in AXES if name in file.header]
        memory = sum(8 * torch.Size(file.header[name][1]).numel() for name in names)
        if memory > MEMORY:
            raise RedxError(f"{path} takes {memory:,} bytes of memory, more than {MEMORY:,}; give fewer examples.")
        return {name: file.get(name) for name in names}


def parts_from_arrays(arrays: Mapping[str, numpy.ndarray | Tensor], where: str = "given") -> Parts:
    """Return the record that arrays of any model describe, after checking all of them.

    Parameters
    ----------
    arrays
        NumPy arrays or tensors by name: base, residuals, gates, labels, domains and, if there are any, confidences.
    where
        Where the arrays come from, for messages, such as `of FILE`.

    Returns
    -------
    Parts
        The record in float64 if any array of numbers is float64 or has integers of more than 16 bits, else in float32.

    Raises
    ------
    RedxError
        If an array is missing, has another shape or type than it should, holds NaN, infinity or numbers beyond 1e15,
        or if a label is no class.

    Examples
    --------
    >>> import numpy
    >>> two, zeros = numpy.eye(2), numpy.zeros((2, 3))
    >>> indices = numpy.array([0, 1])
    >>> parts = parts_from_arrays(
    ...     {"base": two, "residuals": numpy.zeros((2, 3, 2)), "gates": zeros, "labels": indices, "domains": indices}
    ... )
    >>> len(parts), parts.experts, parts.base.dtype
    (2, 3, torch.float64)
    """
    if absent := [name for name in NEEDED if name not in arrays]:
        raise RedxError(f"There is no array {absent[0]!r}; give {', '.join(NEEDED)}.")
    tensors = {name: _to_tensor(name, arrays[name], where) for name in AXES if name in arrays}
    examples, experts, outputs = tensors["residuals"].shape
    if not (examples and experts and outputs):
        raise RedxError(f"The arrays {where} hold no examples, experts or classes; give at least one of each.")
    sizes = {"N": examples, "K": experts, "C": outputs}
    for name, tensor in tensors.items():
        expected = tuple(sizes[axis] for axis in AXES[name].replace(",", "").split())
        if tuple(tensor.shape) != expected:
            raise RedxError(
                f"The array {name!r} {where} has shape {tuple(tensor.shape)}, but residuals of shape "
                f"{(examples, experts, outputs)} need {expected}; all arrays must describe the same examples."
            )
    _check_indices("labels", tensors["labels"], where, outputs)
    _check_indices("domains", tensors["domains"], where, 1)
    exact = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    dtype = torch.float64 if exact else torch.float32
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    confidences = tensors.pop("confidences", None)
    return Parts(*(tensors[name] for name in NEEDED), confidences=confidences)


def _to_tensor(name: str, array: Any, where: str) -> Tensor:
    """Return an array as float32, float64 or (labels and domains) int64, without NaN, infinity or huge numbers."""
    import numpy

    indices = name in ("labels", "domains")
    values = array if isinstance(array, Tensor) else numpy.asarray(array)
    kind = _kind(values)
    if kind not in (("i",) if indices else ("f", "i")):
        wanted = "whole numbers" if indices else "float32 or float64 numbers"
        raise RedxError(f"The array {name!r} {where} holds {values.dtype}, not {wanted}; convert it with astype.")
    if len(values.shape) != len(AXES[name].replace(",", "").split()):
        shape = tuple(values.shape)
        raise RedxError(f"The array {name!r} {where} has shape {shape}, not ({AXES[name]}); see the format.")
    if not isinstance(values, Tensor):
        if indices and values.dtype.kind == "u" and values.size and values.max() > LARGEST_INDEX:
            raise RedxError(f"The array {name!r} {where} holds numbers beyond 2^53, which are no indices; check it.")
        native = "i8" if indices else f"f{_itemsize(values)}"
        values = torch.from_numpy(numpy.ascontiguousarray(values, native))
    values = values.detach().cpu()
    if indices:
        return values.long()
    values = values.to(torch.float32 if _itemsize(values) == 4 else torch.float64)
    if name == "confidences":
        if bool(values.isnan().any()):
            raise RedxError(f"The array {name!r} {where} holds NaN; give every expert a number for every example.")
    elif (
        values.numel() and not -LARGEST <= float(values.amin()) <= float(values.amax()) <= LARGEST
    ):  # NaN is in no order
        advice = "write a gate of a masked expert as -1e4" if name == "gates" else "write finite logits"
        raise RedxError(f"The array {name!r} {where} holds NaN, infinity or numbers beyond 1e15; {advice}.")
    return values


def _itemsize(values: numpy.ndarray | Tensor) -> int:
    """Return 4 where float32 holds all values exactly: floats of 32 bits and whole numbers of 16; otherwise 8."""
    return 4 if values.dtype.itemsize <= (4 if _kind(values) == "f" else 2) else 8


def _kind(values: numpy.ndarray | Tensor) -> str:
    """Return f for floating point of at most 64 bits, i for integers, and an empty text for anything else."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            return "f"
        return "i" if values.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) else ""
    if values.dtype.kind == "f" and values.dtype.itemsize <= 8:
        return "f"
    return "i" if values.dtype.kind in "iu" else ""


def _check_indices(name: str, values: Tensor, where: str, outputs: int) -> None:
    """Refuse labels that are no classes, and indices too large for any record; a regression has answers instead."""
    low, high = (0, outputs - 1) if outputs > 1 else (-LARGEST_INDEX, LARGEST_INDEX)
    outside = ((values < low) | (values > high)).nonzero()[:, 0]
    if len(outside):
        row = int(outside[0])
        raise RedxError(
            f"Row {row} of the array {name!r} {where} holds {int(values[row])}, but {name} lie between {low} and "
            f"{high}; number them from 0."
        )
