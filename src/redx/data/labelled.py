"""A user's own examples of one domain, read for a model that is there already: its classes, its kind of input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from redx.data import arrays, tables
from redx.data.dataset import Split
from redx.data.tables import Record
from redx.data.text import pack_texts
from redx.errors import RedxError

TEXT, LABEL = ("text", "question", "expr"), ("label", "answer")  # columns that are looked for where none is named


def read_labelled(
    file: Path, classes: Sequence[str], shape: Sequence[int] | None, text: str | None = None, label: str | None = None
) -> Split:
    """Examples with labels of the model: texts (no shape), or arrays of one shape; domains are left at 0."""
    if shape is not None:
        return _arrays(file, classes, shape, text or "x", label or "y")
    places = {name: place for place, name in enumerate(classes)}

    def columns(record: Record) -> tuple[str, str]:
        usual = ((text, TEXT), (label, LABEL))
        found = [given or next((name for name in names if name in record), names[0]) for given, names in usual]
        return found[0], found[1]

    def check(record: Record) -> None:
        words, answer = columns(record)
        tables.text_value(record, words)
        if (name := tables.name_value(record, answer)) not in places:
            raise ValueError(f"has the label {name!r}, which is no class of this model")

    records = tables.read_table(file, check)
    labels = [places[tables.name_value(record, columns(record)[1])] for record in records]
    texts = [tables.text_value(record, columns(record)[0]) for record in records]
    return _split(pack_texts(texts), labels)


def _arrays(file: Path, classes: Sequence[str], shape: Sequence[int], text: str, label: str) -> Split:
    found = arrays.read_arrays(file, [text, label], [])
    x = found[text]
    if x.shape[1:] != tuple(shape):
        wanted = ", ".join(map(str, ("N", *shape)))
        raise RedxError(f"The array '{text}' of {file} has shape {x.shape}; this model reads ({wanted}).")
    names = arrays.to_column(file, label, found[label], len(x))
    if strange := [row for row, name in enumerate(names, 1) if name not in classes]:
        faults = {row: f"has the label {names[row - 1]!r}, which is no class of this model" for row in strange}
        raise tables.faulty_rows(file, "Row", faults)
    numbers = arrays.to_matrix(file, text, x.reshape(len(x), -1)).reshape(x.shape)
    inputs = torch.from_numpy(numbers)
    return _split(inputs.to(torch.uint8) if x.dtype == "uint8" else inputs, [classes.index(name) for name in names])


def _split(inputs: torch.Tensor, labels: Sequence[int]) -> Split:
    return Split(inputs, torch.tensor(labels), torch.zeros(len(labels), dtype=torch.long))
