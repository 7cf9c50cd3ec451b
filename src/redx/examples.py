"""A user's own examples of one domain, read for a model that is there already: its classes, its kind of input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from redx import jsonl
from redx.errors import RedxError
from redx.records import Split
from redx.texts import pack

TEXT, LABEL = ("text", "question", "expr"), ("label", "answer")  # columns that are looked for where none is named


def read(
    file: Path, classes: Sequence[str], shape: Sequence[int] | None, text: str | None = None, label: str | None = None
) -> Split:
    """Examples with labels of the model: texts (no shape), or arrays of one shape; domains are left at 0."""
    if shape is not None:
        return _arrays(file, classes, shape)

    def column(record: dict[str, Any], wanted: str | None, usual: Sequence[str]) -> Any:
        names = (wanted,) if wanted else usual
        found = next((record[name] for name in names if record.get(name) is not None), None)
        if found is None:
            raise ValueError(f"has no {' or '.join(map(repr, names))}; it has {', '.join(map(repr, record))}")
        return found

    def check(record: dict[str, Any]) -> None:
        said = column(record, text, TEXT)
        if not isinstance(said, str) or not said.strip():
            raise ValueError("has a text that is empty or no text")
        if str(column(record, label, LABEL)) not in classes:
            raise ValueError(f"has the label {column(record, label, LABEL)!r}, which is no class of this model")

    records = jsonl.read(file, {}, check)
    labels = [classes.index(str(column(record, label, LABEL))) for record in records]
    texts = [column(record, text, TEXT) for record in records]
    return Split(pack(texts), torch.tensor(labels), torch.zeros(len(labels), dtype=torch.long))


def _arrays(file: Path, classes: Sequence[str], shape: Sequence[int]) -> Split:
    import numpy

    try:
        with numpy.load(file, allow_pickle=False) as found:
            x, y = found["x"], found["y"]
    except (OSError, ValueError, KeyError) as error:
        raise RedxError(
            f"{file} cannot be read as arrays x and y; save it with numpy.savez(file, x=…, y=…)."
        ) from error
    if x.shape != (len(y), *shape) or y.ndim != 1:
        raise RedxError(
            f"{file} has x of shape {x.shape} and y of shape {y.shape}; x must be (N, {', '.join(map(str, shape))})."
        )
    if strange := sorted({str(label) for label in y.tolist()} - set(classes)):
        raise RedxError(f"{file} has the label {strange[0]!r}, which is no class of this model.")
    if x.dtype.kind == "f" and not numpy.isfinite(x).all():
        raise RedxError(f"{file} has NaN or infinity in x; leave such examples out.")
    labels = torch.tensor([classes.index(str(label)) for label in y.tolist()])
    inputs = torch.from_numpy(x if x.dtype == numpy.uint8 else x.astype("float32"))
    return Split(inputs, labels, torch.zeros(len(labels), dtype=torch.long))
