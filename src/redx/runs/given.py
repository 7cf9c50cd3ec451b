"""Examples that a program gives to `redx.run`: written to a file beside the run, so that the run can be repeated."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from redx.config import TableConfig
from redx.data.frames import is_values, read_columns, to_records
from redx.data.tables import write_jsonl
from redx.errors import RedxError
from redx.io.reading import exists

TASK = "jsonl"  # the task that reads texts
COLUMNS = ("text", "label", "domain", "split_column")  # options that name a column, or are its values


def task_of_data(data: Any, options: dict[str, Any]) -> str:
    """Return the task that reads these examples: `features` for an .npz file, else `jsonl`."""
    if data is None and not any(is_values(options.get(name)) for name in COLUMNS):
        raise RedxError("There is nothing to run; give the name of a task, or your examples as data.")
    is_path = isinstance(data, str | os.PathLike)
    return "features" if is_path and Path(data).suffix.lower() == ".npz" else TASK


def keep_examples(task: str, out: Path, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a run that name a file, where the examples are in memory; they are written beside the run.

    Parameters
    ----------
    task
        Name of the task.
    out
        The run folder; the file is beside it, and has the hash of its content in its name.
    data
        The examples, a path, or None where the columns are given as values.
    options
        Options by name, of which `text`, `label`, `domain` and `split_column` may be the values of a column.
    """
    if data is None or isinstance(data, str | os.PathLike):
        if task != TASK or not any(is_values(options.get(name)) for name in COLUMNS):  # others may repeat an option
            return options if data is None else options | {"data": os.fspath(data)}
        if data is not None:
            raise RedxError("The examples of a file are in its columns; give their names, not their values.")
    if task != TASK:
        raise RedxError(f"Task '{task}' reads its examples from a file; give its path, or leave out the task.")
    columns, split = read_columns({} if data is None else data)
    settings = TableConfig()
    named: dict[str, str | None] = {"text": settings.text, "label": settings.label, "domain": None}
    named["split_column"] = split
    for name in COLUMNS:
        value = options.get(name)
        if is_values(value):
            column = name.removesuffix("_column")
            columns |= read_columns({column: value})[0]
            named[name] = column
        elif value is not None:
            named[name] = str(value)
    if len({len(values) for values in columns.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise RedxError(f"The columns differ in length ({counts}); give one value for each example.")
    text = named["text"] or ""
    records = to_records(columns, text, [name for key, name in named.items() if key != "text" and name])
    content = json.dumps([records, named], sort_keys=True).encode("utf-8", "surrogatepass")
    file = out.with_name(f"{out.name}-{hashlib.sha256(content).hexdigest()[:8]}.jsonl")
    if not exists(file):
        write_jsonl(file, records)
    return options | named | {"data": str(file)}
