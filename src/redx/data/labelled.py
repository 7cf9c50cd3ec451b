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
    if shape is not None:
        return _read_array_file(file, classes, shape, text or "x", label or "y")
    class_index = {name: index for index, name in enumerate(classes)}

    def columns(record: Record) -> tuple[str, str]:
        usual = ((text, TEXT), (label, LABEL))
        chosen = [given or next((name for name in names if name in record), names[0]) for given, names in usual]
        return chosen[0], chosen[1]

    def check(record: Record) -> None:
        text_column, label_column = columns(record)
        tables.text_value(record, text_column)
        if (name := tables.name_value(record, label_column)) not in class_index:
            raise ValueError(f"has the label {name!r:.100}, which is no class of this model")

    records = tables.read_table(file, check)
    labels = [class_index[tables.name_value(record, columns(record)[1])] for record in records]
    texts = [tables.text_value(record, columns(record)[0]) for record in records]
    return _one_domain(pack_texts(texts), labels)


def _read_array_file(file: Path, classes: Sequence[str], shape: Sequence[int], text: str, label: str) -> Split:
    values = arrays.read_arrays(file, [text, label], [])
    x = values[text]
    if x.shape[1:] != tuple(shape):
        wanted = ", ".join(map(str, ("N", *shape)))
        raise RedxError(f"The array '{text}' of {file} has shape {x.shape}; this model reads ({wanted}).")
    names = arrays.to_column(file, label, values[label], len(x))
    if unknown := [row for row, name in enumerate(names, 1) if name not in classes]:
        faults = {row: f"has the label {names[row - 1]!r:.100}, which is no class of this model" for row in unknown}
        raise tables.faulty_rows(file, "Row", faults)
    numbers = arrays.to_matrix(file, text, x.reshape(len(x), -1)).reshape(x.shape)
    inputs = torch.from_numpy(numbers)
    inputs = inputs.to(torch.uint8) if x.dtype == "uint8" else inputs
    return _one_domain(inputs, [classes.index(name) for name in names])


def _one_domain(inputs: torch.Tensor, labels: Sequence[int]) -> Split:
    return Split(inputs, torch.tensor(labels), torch.zeros(len(labels), dtype=torch.long))
