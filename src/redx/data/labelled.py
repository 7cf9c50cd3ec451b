"""Reads a user's examples of one domain for an existing model: with its classes, and inputs of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from redx.data import arrays, tables
from redx.data.dataset import Split
from redx.data.tables import Record
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.io.files import natural_order

NO_CLASS = "which is no class of this model"
UNKNOWN = f"has the label {{}}, {NO_CLASS}"
TEXT, LABEL = ("text", "question", "expr"), ("label", "answer")  # columns that are tried where the user names none


def read_labelled(
    file: Path, classes: Sequence[str], shape: Sequence[int] | None, text: str | None = None, label: str | None = None
) -> Split:
    """Return the examples of a file as a split whose domains are all 0.

    Parameters
    ----------
    file
        A table of texts (JSONL, CSV, Parquet), or an .npz file of arrays.
    classes
        Names of the model's classes; every label must be one of them.
    shape
        Shape of one input of the model; None where the model reads texts.
    text
        Column of the texts, or array of the inputs; by default the usual names are tried.
    label
        Column or array of the labels; by default the usual names are tried.

    Returns
    -------
    Split
        Texts as bytes (N, L) or arrays (N, *shape), with class indices (N,).

    Raises
    ------
    RedxError
        Where a row cannot be used; the message names the rows.
    """
    names, inputs = _read_examples(file, classes, shape, text, label)
    return _one_domain(inputs, names, classes)


def read_new_classes(
    file: Path, classes: Sequence[str], shape: Sequence[int] | None, text: str | None = None, label: str | None = None
) -> tuple[Split, tuple[str, ...]]:
    """Return the examples of a file, whose labels need not be classes of the model, and the labels that are new.

    The parameters are those of `read_labelled`. The new labels are in natural order, and class indices count them after
    the classes of the model.
    """
    names, inputs = _read_examples(file, None, shape, text, label)
    new = tuple(sorted(set(names) - set(classes), key=natural_order))
    return _one_domain(inputs, names, (*classes, *new)), new


def _read_examples(
    file: Path, classes: Sequence[str] | None, shape: Sequence[int] | None, text: str | None, label: str | None
) -> tuple[list[str], torch.Tensor]:
    """Return the labels and the inputs of a file; without `classes`, any label is accepted."""
    if shape is not None:
        return _read_array_file(file, classes, shape, text or "x", label or "y")
    known = None if classes is None else set(classes)

    def columns(record: Record) -> tuple[str, str]:
        usual = ((text, TEXT), (label, LABEL))
        chosen = [given or next((name for name in names if name in record), names[0]) for given, names in usual]
        return chosen[0], chosen[1]

    def check(record: Record) -> None:
        text_column, label_column = columns(record)
        tables.text_value(record, text_column)
        name = tables.name_value(record, label_column)
        if known is not None and name not in known:
            raise ValueError(UNKNOWN.format(repr(name)[:100]))

    records = tables.read_table(file, check)
    names = [tables.name_value(record, columns(record)[1]) for record in records]
    return names, pack_texts([tables.text_value(record, columns(record)[0]) for record in records])


def _read_array_file(
    file: Path, classes: Sequence[str] | None, shape: Sequence[int], text: str, label: str
) -> tuple[list[str], torch.Tensor]:
    values = arrays.read_arrays(file, [text, label], [])
    x = values[text]
    if x.shape[1:] != tuple(shape):
        wanted = ", ".join(map(str, ("N", *shape)))
        raise RedxError(f"The array '{text}' of {file} has shape {x.shape}; this model reads ({wanted}).")
    if not len(x):
        raise RedxError(f"{file} contains no examples; give arrays with one example per row.")
    names = arrays.to_column(file, label, values[label], len(x))
    known = None if classes is None else set(classes)
    if known is not None and (unknown := [row for row, name in enumerate(names, 1) if name not in known]):
        faults = {row: UNKNOWN.format(repr(names[row - 1])[:100]) for row in unknown}
        raise tables.faulty_rows(file, "Row", faults)
    numbers = arrays.to_matrix(file, text, x.reshape(len(x), -1)).reshape(x.shape)
    inputs = torch.from_numpy(numbers)
    return list(names), inputs.to(torch.uint8) if x.dtype == "uint8" else inputs


def _one_domain(inputs: torch.Tensor, names: Sequence[str], classes: Sequence[str]) -> Split:
    index = {name: number for number, name in enumerate(classes)}
    return Split(inputs, torch.tensor([index[name] for name in names]), torch.zeros(len(names), dtype=torch.long))
