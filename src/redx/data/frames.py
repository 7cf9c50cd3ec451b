"""Examples that a program holds in memory: a DataFrame, a dataset of Hugging Face, columns, records or lists.

None of these packages is needed: what an object offers tells what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redx.data.tables import Record, faulty_rows, name_value, required_column, text_value
from redx.errors import RedxError

SPLITS = ("train", "validation", "test")  # of a dataset that comes in splits
ADVICE = "give a DataFrame, a dataset, a mapping of columns, a list of records, or a path"
GIVEN = Path("the data")  # what messages call examples that are in no file


def is_frame(value: Any) -> bool:
    """Return whether a value is a table as pandas has it: with columns, an index, and columns by name."""
    return all(hasattr(value, name) for name in ("columns", "index", "to_dict")) and not isinstance(value, Mapping)


def is_values(value: Any) -> bool:
    """Return whether a value holds one value for each example, and not the name of a column."""
    return value is not None and not isinstance(value, str | bytes) and hasattr(value, "__len__")


def read_columns(data: Any) -> tuple[dict[str, list[Any]], str | None]:
    """Return examples as plain values by column, and the column that names their split, if they come in splits.

    Parameters
    ----------
    data
        A DataFrame, a dataset or its splits as Hugging Face has them, a mapping of columns, or a list of records.

    Examples
    --------
    >>> read_columns([{"text": "a", "label": 1}, {"text": "b", "label": 2}])
    ({'text': ['a', 'b'], 'label': [1, 2]}, None)
    """
    if is_frame(data):
        names = [str(name) for name in data.columns]
        if len(set(names)) < len(names):
            raise RedxError("The DataFrame has a column twice; give every column a name of its own.")
        return {name: _plain(data[column]) for name, column in zip(names, data.columns, strict=True)}, None
    if isinstance(data, Mapping) and any(hasattr(part, "column_names") for part in data.values()):
        return _join_splits(data)
    if not isinstance(data, Mapping) and hasattr(data, "column_names") and hasattr(data, "features"):
        return {name: _decoded(data, name) for name in data.column_names}, None
    if isinstance(data, Mapping):
        columns = {str(name): _plain(values) for name, values in data.items() if is_values(values)}
        if len(columns) < len(data) or len({len(values) for values in columns.values()}) > 1:
            raise RedxError("Columns are lists of equal length; give one value for each example in every column.")
        return columns, None
    if isinstance(data, Sequence) and not isinstance(data, str) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(str(key) for row in data for key in row)
        return {name: _plain([row.get(name) for row in data]) for name in names}, None
    raise RedxError(f"Examples cannot be read from a {type(data).__name__}; {ADVICE}.")


def to_records(columns: Mapping[str, Sequence[Any]], text: str, names: Sequence[str]) -> list[Record]:
    """Return the examples with only these columns, or refuse rows that cannot be used.

    Parameters
    ----------
    columns
        Values by column.
    text
        The column with the texts.
    names
        The columns with labels, domains and splits.
    """
    wanted = [text, *names]
    for name in wanted:
        required_column(GIVEN, columns, name)
    rows = zip(*(columns[name] for name in wanted), strict=True)
    records: list[Record] = [dict(zip(wanted, row, strict=True)) for row in rows]
    faults: dict[int, str] = {}
    for number, record in enumerate(records, 1):
        try:
            text_value(record, text)
            for name in names:
                name_value(record, name)
        except ValueError as error:
            faults[number] = "" if faults else str(error)
    if faults:
        raise faulty_rows(GIVEN, "Row", faults)
    return records


def _join_splits(data: Mapping[Any, Any]) -> tuple[dict[str, list[Any]], str | None]:
    """Return the rows of train, validation and test, with a column that names these."""
    if set(data) != set(SPLITS):
        found = ", ".join(map(str, data))
        raise RedxError(f"This dataset has the splits {found}; give one of them, or {', '.join(SPLITS)}.")
    parts = {name: read_columns(data[name])[0] for name in SPLITS}
    names = [name for name in parts[SPLITS[0]] if all(name in part for part in parts.values())]
    columns = {name: [value for part in parts.values() for value in part[name]] for name in names}
    column = "split" if "split" not in columns else "redx split"
    columns[column] = [name for name, part in parts.items() for _ in part[names[0]]]
    return columns, column


def _decoded(data: Any, name: str) -> list[Any]:
    """Return a column of a dataset; whole numbers that stand for named classes as the names."""
    words = getattr(data.features.get(name), "names", None) if hasattr(data.features, "get") else None
    values = _plain(data[name])
    if not words:
        return values
    return [words[value] if isinstance(value, int) and 0 <= value < len(words) else value for value in values]


def _plain(values: Any) -> list[Any]:
    """Return values as Python has them: numbers of numpy as numbers, NaN and what is missing as None."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    plain = (value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value for value in listed)
    return [None if _is_missing(value) else value for value in plain]


def _is_missing(value: Any) -> bool:
    if isinstance(value, str | int | list | dict | tuple):
        return False
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # those of pandas
