"""A user's own files: rows of JSONL, CSV and Parquet, and arrays of .npz, with every fault named by its line or row."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io import files
from redx.io.files import natural_order

Record = dict[str, Any]


Check = Callable[[Record], None]


FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


BROKEN = re.compile("[\0\ud800-\udfff]")


def read_table(path: Path, check: Check) -> list[Record]:
    """The rows of a table as records; `check` raises a ValueError that says what is wrong with one."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise RedxError(f"{path} is none of {', '.join(FORMATS)}; save your examples as one of these.")
    if not path.is_file():
        raise RedxError(f"There is no file {path}; give the path of a table with --data FILE.")
    if kind in (".jsonl", ".ndjson"):
        return read_jsonl(path, {}, check)
    word, rows = ("Row", _parquet(path)) if kind == ".parquet" else ("Line", _csv(path))
    records: list[Record] = []
    faults: dict[int, str] = {}
    for number, found in rows:
        try:
            if isinstance(found, str):
                raise ValueError(found)
            check(found)
            records.append(found)
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        raise faulty_rows(path, word, faults)
    if not records:
        raise RedxError(f"{path} holds no examples; give a table with a row for each.")
    return records


def faulty_rows(path: Path, word: str, faults: dict[int, str]) -> RedxError:
    """A refusal that names the faulty lines or rows, and what is wrong with the first."""
    first = min(faults)
    named = ", ".join(map(str, list(faults)[:MAX_SHOWN]))
    more = f" and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
    words, it, them = (word, "it", "it") if len(faults) == 1 else (f"{word}s", f"{word.lower()} {first}", "them")
    return RedxError(f"{words} {named}{more} of {path} cannot be used ({it} {faults[first]}); correct {them}.")


def text_value(record: Record, column: str) -> str:
    """The text in a column, or a ValueError."""
    value = required_value(record, column)
    if not isinstance(value, str):
        raise ValueError(f"has {value!r:.40} in the column '{column}', not text")
    if BROKEN.search(value):
        raise ValueError(f"has a NUL or half a character (a lone surrogate) in the column '{column}'")
    return value


def name_value(record: Record, column: str) -> str:
    """The label or domain in a column, as text: words as they are, whole numbers without a fraction."""
    return to_name(required_value(record, column), column)


def to_name(value: object, column: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"has {value!r:.40} in the column '{column}', neither text nor a number")
    found = str(value).strip()
    if BROKEN.search(found):
        raise ValueError(f"has a NUL or half a character (a lone surrogate) in the column '{column}'")
    return found


def required_value(record: Record, column: str) -> object:
    if column not in record:
        raise ValueError(f"has no column '{column}', only {', '.join(map(repr, record)) or 'none at all'}")
    value = record[column]
    if value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value):
        raise ValueError(f"has no value in the column '{column}'")
    return value


def sorted_names(names: Sequence[str]) -> list[str]:
    """Distinct names in natural order: numbers as numbers, so that 9 stands before 10."""
    return sorted(set(names), key=natural_order)


def _csv(path: Path) -> Iterator[tuple[int, Record | str]]:
    """Rows of a CSV file by the line they start on; a str is what is wrong with one."""
    lines = read_text(path, MAX_BYTES)
    delimiter = max(",;\t", key=lines.partition("\n")[0].count)  # spreadsheets of some countries write semicolons
    reader = csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    before = 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield before + 1, f"is no CSV ({error})"
            return  # what follows may be read quite wrongly
        line, before = before + 1, reader.line_num
        if not any(value.strip() for value in row):
            continue
        if not columns:
            columns = [value.strip() for value in row]
            if len(set(columns)) < len(columns):
                raise RedxError(f"{path} has a column twice in its first line; give every column a name of its own.")
        elif len(row) != len(columns):
            yield line, f"has {len(row)} values where the first line has {len(columns)} columns"
        else:
            yield line, dict(zip(columns, row, strict=True))


def _parquet(path: Path) -> Iterator[tuple[int, Record | str]]:
    """Rows of a Parquet file by number from 1."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise RedxError("Parquet files need pyarrow; install with `pip install 'redx[tables]'`.") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        raise RedxError(f"{path} cannot be read as Parquet ({why}); write it anew.") from error


MAX_BYTES = 2**28  # bytes of a file that is read into memory at once


MAX_SHOWN = 10  # faulty lines that a refusal names


TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "a truth value",
    list: "a list",
    dict: "an object",
}


def read_jsonl(
    path: Path,
    fields: Mapping[str, type],
    check: Callable[[dict[str, Any]], None] = lambda record: None,
    limit_bytes: int = MAX_BYTES,
) -> list[dict[str, Any]]:
    """The records of a file; each must have these fields with values of these types, and may have more.

    `check` raises a ValueError that says what else is wrong with a record.
    """
    records: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for number, line in enumerate(read_text(path, limit_bytes).split("\n"), 1):  # JSON text may hold other line ends
        if not line.strip():
            continue
        try:
            records.append(_record(line, fields))
            check(records[-1])
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        first = min(faults)
        named = ", ".join(map(str, list(faults)[:MAX_SHOWN]))
        more = f" and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
        lines, it, them = ("Line", "it", "it") if len(faults) == 1 else ("Lines", f"line {first}", "them")
        raise RedxError(f"{lines} {named}{more} of {path} cannot be used ({it} {faults[first]}); correct {them}.")
    if not records:
        raise RedxError(f"{path} is empty; give a JSONL file with a record on each line.")
    return records


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records, one a line."""
    try:
        content = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()
    except (TypeError, ValueError) as error:
        raise RedxError(f"A record for {path} cannot be written as JSON ({error}); leave out that value.") from error
    files.write_bytes(path, content)


def read_text(path: Path, limit_bytes: int = MAX_BYTES) -> str:
    """The text of a file in UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise RedxError(f"There is no file {path}; give the path of a text file.") from error
    except IsADirectoryError as error:
        raise RedxError(f"{path} is a folder; give the path of a file in it.") from error
    except OSError as error:
        raise RedxError(f"Cannot read {path} ({error.strerror}); fix its permissions or give another file.") from error
    if len(content) > limit_bytes:
        raise RedxError(f"{path} is larger than {limit_bytes:,} bytes; split it into smaller files.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RedxError(f"{path} is not UTF-8 text (line {line}); save it again in UTF-8.") from error


def _record(line: str, fields: Mapping[str, type]) -> dict[str, Any]:
    """The object on a line, or a ValueError that says what is wrong with it."""
    try:
        record = json.loads(line, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        raise ValueError("is not JSON") from error
    except ValueError as error:
        raise ValueError("has NaN, infinity or far too large a number") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    for name, kind in fields.items():
        if name not in record:
            raise ValueError(f"has no field '{name}'")
        value = record[name]
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"has {json.dumps(value)[:40]} in the field '{name}', not {TYPE_NAMES[kind]}")
    return record


def _finite(text: str) -> float:
    """JSON has no NaN and no infinity, although Python reads them, even from 1e999."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value
