"""Outputs of any model: the arrays of a `Parts` record in an .npz or a safetensors file, and certificates for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from redx.composition import certificate, noise
from redx.composition.evaluation import certify
from redx.composition.metrics import wilson_interval
from redx.composition.parts import UNKNOWN, Parts, predicted_classes
from redx.composition.risk import RiskControl, controlled_region
from redx.composition.rules import Rule, general_rules, get_rule
from redx.errors import RedxError
from redx.io.array_files import read_npz
from redx.io.safetensors_files import open_safetensors
from redx.seeding import generator

if TYPE_CHECKING:
    import numpy

AXES = {
    "base": "N, C",
    "residuals": "N, K, C",
    "gates": "N, K",
    "labels": "N,",
    "domains": "N,",
    "confidences": "N, K",
    "groups": "N,",
}
NEEDED = ("base", "residuals", "gates")
OPTIONAL = tuple(name for name in AXES if name not in NEEDED)
INDICES = ("labels", "domains", "groups")
QUANTILES = (0.01, 0.1, 0.5)  # of the radii
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
        An .npz or .safetensors file with the arrays base (N, C), residuals (N, K, C), gates (N, K) and, if there are
        any, labels (N,), domains (N,), confidences (N, K) and groups (N,). Other arrays are not read.

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
        arrays: Mapping[str, Any] = read_npz(path, NEEDED, OPTIONAL, MEMORY)
    else:
        arrays = _read_safetensors(path)
    memory = sum(math.prod(array.shape) * _itemsize(array) for array in arrays.values())
    if memory > (limit := max(SMALL_BYTES, EXPANSION * path.stat().st_size)):
        raise RedxError(f"{path} unpacks to {memory:,} bytes, more than {limit:,}; give fewer examples or float32.")
    return parts_from_arrays(arrays, f"of {path}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    missing = "give a file with the arrays base, residuals and gates, and labels if you have them"
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
        NumPy arrays or tensors by name: base, residuals, gates and, if there are any, labels (-1: unknown), domains,
        confidences and groups.
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
    for name in INDICES:
        if name in tensors:
            _check_indices(name, tensors[name], where, outputs if name == "labels" else 1)
    exact = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    dtype = torch.float64 if exact else torch.float32
    tensors = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    outputs = [tensors.pop(name) for name in NEEDED]
    return Parts(*outputs, **{name: tensors.get(name) for name in OPTIONAL})  # pyright: ignore[reportArgumentType]


def _to_tensor(name: str, array: Any, where: str) -> Tensor:
    """Return an array as float32, float64 or (indices) int64, without NaN, infinity or huge numbers."""
    import numpy

    indices = name in INDICES
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
    low, high = (UNKNOWN, outputs - 1) if outputs > 1 else (-LARGEST_INDEX, LARGEST_INDEX)
    outside = ((values < low) | (values > high)).nonzero()[:, 0]
    if len(outside):
        row, unknown = int(outside[0]), ", and write -1 where the label is unknown" if outputs > 1 else ""
        raise RedxError(
            f"Row {row} of the array {name!r} {where} holds {int(values[row])}, but {name} lie between "
            f"{max(low, 0) if outputs > 1 else low} and {high}; number them from 0{unknown}."
        )


@dataclass(frozen=True)
class PartsReport:
    """What `certify_parts` measures.

    Attributes
    ----------
    rows
        Indices of the test examples in the given record, (M,): those with a label that were not set aside.
    predicted, radius
        Predictions of these examples and their certified radii ε*, both of shape (M,).
    figures
        All other results, which can be written as JSON; `redx certify --parts` prints them.
    """

    rows: Tensor
    predicted: Tensor
    radius: Tensor
    figures: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, which hold numbers, texts, lists and dicts only."""
        return self.figures


def certify_parts(
    parts: Parts | Path | str,
    rule: Rule | str = "red",
    *,
    epsilons: Sequence[float] = certificate.EPSILONS,
    kinds: Sequence[str] | None = None,
    levels: Sequence[float] = noise.LEVELS,
    risk: float | None = None,
    confidence: float | None = None,
    calibration: Parts | Path | str | None = None,
    share: float = 0.5,
    seed: int = 0,
    score: str = "gain",
) -> PartsReport:
    """Return exact certificates, noise curves and, if wanted, a risk cut-off for the outputs of any model.

    Parameters
    ----------
    parts
        The outputs, or a parts file as `read_parts_file` reads it. Rows of unknown label are left out and counted.
    rule
        How the model composes them: red, fixed, sum or red-oracle for residuals on a base; moe, uniform or oracle for
        standalone experts.
    epsilons
        Values of ε for certified accuracy.
    kinds, levels
        Kinds and levels of routing noise; all kinds by default.
    risk
        Bound on the harm of the worst router; None sets no cut-off.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    calibration
        Outputs on examples that nothing was trained or chosen on, for the cut-off; None sets rows of `parts` aside.
    share, seed
        Share of the rows that is set aside where `calibration` is None, and the seed of the draw.
    score
        Confidence of the experts where the record has none: `gain` (log-odds of the expert's answer less those of the
        base's answer) or `answer`; see `RiskControl`.

    Returns
    -------
    PartsReport
        Predictions and radii of the test rows, and all figures.

    Raises
    ------
    RedxError
        If a file or an option is wrong, if no label is known, or if a risk is asked for that the examples or the rule
        do not support.

    Examples
    --------
    >>> base, residuals = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> parts = Parts(base, residuals, torch.tensor([[9.0, -9.0]]), labels=torch.tensor([0]))
    >>> report = certify_parts(parts, epsilons=[0.5, 1])
    >>> report.radius, report.figures["certified"]
    (tensor([0.6667]), {'0.5': 1.0, '1': 0.0})
    """
    chosen, whole = _standalone_or_residual(rule), _to_parts(parts)
    kinds = tuple(noise.NOISES) if kinds is None else kinds
    for level in levels:
        noise.check_level(level)
    if risk is None and (calibration is not None or confidence is not None):
        raise RedxError("Calibration examples and a confidence need a risk; give one, such as 0.01.")
    rows, promise = whole.known.nonzero()[:, 0], None
    if not len(rows):
        raise RedxError(
            f"No label of the {len(whole)} examples is known, so accuracy cannot be measured; give labels, or use "
            "redx.certify for radii alone."
        )
    record = whole.labelled()
    if risk is not None:
        control = RiskControl(risk, confidence, score)
        kept, record, promise = _control_risk(control, chosen, record, calibration, share, seed)
        rows = rows[kept]
    certified, labels = certify(chosen, record), record.true_labels()
    right = certified.predicted == labels
    curves: dict[str, dict[str, float]] = {}
    for kind, answers in noise.noise_sweep(chosen, record, certified.predicted, kinds, levels, seed):
        shares = [float((predicted == labels).double().mean()) for predicted in answers]
        curves[kind.name] = {f"{level:g}": value for level, value in zip(levels, shares, strict=True)}
    low, high = wilson_interval(float(right.double().mean()), len(record))
    radii = certified.radius.double()
    figures = {
        "rule": chosen.name,
        "examples": len(record),
        "unknown": int((~whole.known).sum()),
        "experts": record.experts,
        "outputs": record.base.shape[1],
        "accuracy": {"mean": float(right.double().mean()), "low": low, "high": high},
        "base": float((predicted_classes(record.base) == labels).double().mean()) if chosen.keeps_base else None,
        "per_domain": _per_domain(right, record.domains),
        "certified": {f"{e:g}": certificate.certified_accuracy(certified.radius, right, e) for e in epsilons},
        "radius": {f"{q:g}": float(radii.sort().values[int(q * (len(radii) - 1))]) for q in QUANTILES},
        "breakable": float((radii < 1).double().mean()),
        "noise": curves,
        "risk": promise,
    }
    return PartsReport(rows, certified.predicted, certified.radius, figures)


def _to_parts(parts: Parts | Path | str) -> Parts:
    return parts if isinstance(parts, Parts) else read_parts_file(parts)


def _standalone_or_residual(name: Rule | str) -> Rule:
    rule = get_rule(name)
    if rule.needs_statistics:
        raise RedxError(f"The rule {rule.name!r} is for runs, whose settings say what their base is; ask 'base' here.")
    if rule.form not in ("residual", "standalone"):
        possible = ", ".join(
            rule.name for rule in map(get_rule, general_rules()) if rule.form in ("residual", "standalone")
        )
        raise RedxError(f"The rule {rule.name!r} reads one head of its own, not experts; choose one of {possible}.")
    return rule


def _control_risk(
    control: RiskControl,
    rule: Rule,
    parts: Parts,
    calibration: Parts | Path | str | None,
    share: float,
    seed: int,
) -> tuple[Tensor, Parts, dict[str, Any]]:
    """Return the test rows, their record with cut-offs, and the promise with what the test rows show."""
    controlled_region(rule)
    if calibration is None:
        rows, held = _divide(parts, share, seed)
        test, held_out = parts.only(rows), parts.only(held)
    else:
        rows, test, held_out = torch.arange(len(parts)), parts, _to_parts(calibration)
        if held_out.residuals.shape[1:] != parts.residuals.shape[1:]:
            raise RedxError(
                "The calibration examples come from other experts or classes; give outputs of the same model."
            )
    if (test.confidences is None) != (held_out.confidences is None):
        raise RedxError("Only one of the two records has confidences; give them for both or for neither.")
    control.calibrate(held_out)
    promise = control.report(test, rule) | {
        "divided": None if calibration is not None else {"share": share, "seed": seed}
    }
    return rows, control.apply(test), promise


def _divide(parts: Parts, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows for the test and for calibration, both in ascending order, drawn by a seed; groups stay whole."""
    units, unit = len(parts), torch.arange(len(parts))
    if parts.groups is not None:
        groups, unit = parts.groups.unique(return_inverse=True)
        units = len(groups)
    count = round(share * units) if 0 < share < 1 else 0
    if not 0 < count < units:
        name = "rows" if parts.groups is None else "groups"
        raise RedxError(
            f"A share of {share:g} of {units} {name} leaves no calibration or no test; choose one like 0.5."
        )
    held = torch.zeros(units, dtype=torch.bool)
    held[torch.randperm(units, generator=generator(seed, "calibration"))[:count]] = True
    return (~held[unit]).nonzero()[:, 0], held[unit].nonzero()[:, 0]


def _per_domain(right: Tensor, domains: Tensor | None) -> dict[str, float]:
    """Return the accuracy in every domain that has an example; nothing where domains are unknown."""
    if domains is None:
        return {}
    names, index = domains.unique(return_inverse=True)
    totals = torch.bincount(index, minlength=len(names))
    shares = torch.bincount(index, right.double(), minlength=len(names)) / totals
    return dict(zip(map(str, names.tolist()), shares.tolist(), strict=True))
