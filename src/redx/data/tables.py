"""Reads a user's tables (JSONL, CSV, Parquet); an error names every row that cannot be used by its line or number."""

from __future__ import annotations

import csv
import difflib
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
from redx.io.reading import TEXT_BYTES, DuplicateKey, TooManyValues, is_file, open_file, parse_json, read_text

Record = dict[str, Any]
Check = Callable[[Record], None]  # raises a ValueError that says what is wrong with a record

FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
BROKEN = re.compile("[\0\ud800-\udfff]")  # characters that no text or name may contain
MAX_BYTES = TEXT_BYTES  # size of the largest file that is read into memory
MAX_ROWS = 2**21  # rows of a table; every one becomes Python objects
MAX_VALUES = 2**23  # and so does every value
MAX_COLUMNS = 1000
ROWS_AT_ONCE = 256  # rows of a Parquet file that are unpacked at once
MAX_LABEL = 10_000  # characters in a label or in the name of a domain
MAX_SHOWN, MAX_NAMED = 10, 20  # faulty rows, and columns, that an error names
MAX_DIGITS = 300  # of a label that is read as a number
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
TRUTH_WORDS = ("yes", "no", "true", "false")
LARGE_FIELD = (
    f"has a field of more than {csv.field_size_limit():,} characters, as a quote that is never closed makes; close it, "
    "shorten the text, or save the table as JSONL"
)
TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "a truth value",
    list: "a list",
    dict: "an object",
}


class _MissingColumn(ValueError):
    """A record lacks a column: where the first one does, the whole table is meant.

    Attributes
    ----------
    column
        The name of the column.
    """

    def __init__(self, column: str, record: Record) -> None:
        self.column = column
        names = ", ".join(f"{name!r:.40}" for name in list(record)[:MAX_NAMED]) or "none at all"
        near = difflib.get_close_matches(column, list(record)[:MAX_NAMED], n=1)
        hint = f" (did you mean {near[0]!r:.40}?)" if near else ""
        super().__init__(f"has no column '{column}'{hint}, only {names}{' …' * (len(record) > MAX_NAMED)}")


def read_table(path: Path, check: Check) -> list[Record]:
    """Return the rows of a table.

    Parameters
    ----------
    path
        A file whose name ends in one of `FORMATS`. CSV files have the column names in their first line and are
        separated by commas, semicolons or tabs.
    check
        Raises a ValueError that says what is wrong with a record, such as `has no label`.

    Returns
    -------
    list of dict
        One record per row: values by column.

    Raises
    ------
    RedxError
        Where the file cannot be read or is empty, or where records are faulty; the message names their rows.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise RedxError(f"{path} is none of {', '.join(FORMATS)}; save your examples as one of these.")
    if not is_file(path):
        raise RedxError(f"There is no file {path}; give the path of a table with --data FILE.")
    if kind in (".jsonl", ".ndjson"):
        return read_jsonl(path, {}, check)
    word, rows = ("Row", enumerate(_read_parquet(path), 1)) if kind == ".parquet" else ("Line", _read_csv(path))
    records: list[Record] = []
    faults: dict[int, str] = {}
    values = 0
    for number, row in rows:
        values += len(row) if isinstance(row, dict) else 0
        _check_count(path, len(records) + len(faults), values)
        try:
            if isinstance(row, str):
                raise ValueError(row)
            check(row)
            records.append(row)
        except _MissingColumn as error:
            raise _without_column(path, error) from error  # every row of these formats has the same columns
        except ValueError as error:
            faults[number] = "" if faults else str(error)
    if faults:
        raise faulty_rows(path, word, faults)
    if not records:
        raise RedxError(f"{path} contains no examples; give a table with one example per row.")
    return records


def read_jsonl(
    path: Path,
    fields: Mapping[str, type],
    check: Callable[[dict[str, Any]], None] = lambda record: None,
    limit_bytes: int = MAX_BYTES,
) -> list[dict[str, Any]]:
    """Return the records of a JSONL file: one JSON object per line.

    Parameters
    ----------
    path
        The file, in UTF-8; blank lines are skipped.
    fields
        Fields that every record must have, with the types of their values. Further fields are allowed.
    check
        Raises a ValueError that says what else is wrong with a record.
    limit_bytes
        Size of the largest file that is read.

    Returns
    -------
    list of dict
        The records in the order of the file.

    Raises
    ------
    RedxError
        Where the file cannot be read or is empty, or where lines are faulty; the message names the lines.
    """
    records: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    lacking: _MissingColumn | None = None
    text = io.StringIO(read_text(path, limit_bytes), newline="\n")  # JSON may contain other line ends
    values = 0
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        values += sum(map(line.count, ",[{"))
        _check_count(path, len(records) + len(faults), values)
        try:
            record = _parse_record(line, fields)
            check(record)
            records.append(record)
        except ValueError as error:
            if isinstance(error, _MissingColumn) and not records and not faults:
                lacking = error
            faults[number] = "" if faults else str(error)  # only the first is told
    if lacking is not None and not records:
        raise _without_column(path, lacking)
    if faults:
        raise faulty_rows(path, "Line", faults)
    if not records:
        raise RedxError(f"{path} is empty; give a JSONL file with one record per line.")
    return records


def required_column(path: Path, columns: Iterable[str], column: str) -> None:
    """Refuse a table without a column; the message names those that it has.

    Parameters
    ----------
    path
        What the table is called.
    columns
        The columns that it has.
    column
        The one that is needed.
    """
    if column not in (known := dict.fromkeys(columns)):
        raise _without_column(path, _MissingColumn(column, known))


def _without_column(path: Path, error: _MissingColumn) -> RedxError:
    return RedxError(
        f"{path} {error}; rename yours, or give its name where there is an option for it, such as --label."
    )


def _check_count(path: Path, rows: int, values: int) -> None:
    if rows >= MAX_ROWS:
        raise RedxError(f"{path} has more than {MAX_ROWS:,} rows; give fewer examples.")
    if values > MAX_VALUES:
        raise RedxError(f"{path} has more than {MAX_VALUES:,} values; give fewer examples, or fewer columns.")


def _check_unpacked(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise RedxError(f"{path} unpacks to more than {MAX_BYTES:,} bytes; give fewer or shorter rows.")


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records to a JSONL file, one per line."""
    try:
        content = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()
    except (TypeError, ValueError) as error:
        raise RedxError(f"A record for {path} cannot be written as JSON ({error}); leave out that value.") from error
    files.write_bytes(path, content)


def faulty_rows(path: Path, word: str, faults: dict[int, str]) -> RedxError:
    """Return an error that names the faulty rows, and says what is wrong with the first.

    `word` is what a row is called, `Line` or `Row`; `faults` are the rows by number with what is wrong with them.
    """
    first = min(faults)
    numbers = ", ".join(map(str, list(faults)[:MAX_SHOWN]))
    more = f" and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
    words, it, them = (word, "it", "it") if len(faults) == 1 else (f"{word}s", f"{word.lower()} {first}", "them")
    return RedxError(f"{words} {numbers}{more} of {path} cannot be used ({it} {faults[first]}); correct {them}.")


# --- values of a record


def text_value(record: Record, column: str) -> str:
    """Return the text in a column, or raise a ValueError."""
    value = record[column] if isinstance(record.get(column), str) else required_value(record, column)
    if not isinstance(value, str):
        raise ValueError(f"has {value!r:.40} in the column '{column}', not text")
    if not value.strip():
        raise ValueError(f"has an empty text in the column '{column}'")
    if BROKEN.search(value):
        raise ValueError(f"has a NUL or half a character (a lone surrogate) in the column '{column}'")
    return value


def name_value(record: Record, column: str) -> str:
    """Return the label or domain in a column as text, or raise a ValueError."""
    return to_name(required_value(record, column), column)


def to_name(value: object, column: str) -> str:
    """Return a value as a name, whole numbers without a fraction, or raise a ValueError that names the column."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"has {value!r:.40} in the column '{column}', neither text nor a number")
    name = str(value).strip()
    if len(name) > MAX_LABEL:
        raise ValueError(f"has {len(name):,} characters in the column '{column}', more than {MAX_LABEL:,}")
    if BROKEN.search(name):
        raise ValueError(f"has a NUL or half a character (a lone surrogate) in the column '{column}'")
    return name


def required_value(record: Record, column: str) -> object:
    """Return the value in a column, or raise a ValueError where it is missing, blank or NaN."""
    if column not in record:
        raise _MissingColumn(column, record)
    value = record[column]
    if value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value):
        raise ValueError(f"has no value in the column '{column}'")
    return value


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse labels that cannot be classes: each one unique, or one value written in several ways.

    Parameters
    ----------
    path
        The file that they are from, for the message.
    names
        The label of every example, as text.
    """
    first: dict[str, int] = {}
    for row, name in enumerate(names, 1):
        first.setdefault(name, row)
    if len(first) == len(names):
        (one, _), (other, _), *_ = first.items()
        raise RedxError(
            f"Every example of {path} has a label of its own ({one!r:.40} in row 1, {other!r:.40} in row 2); name a "
            "column of classes, each of which several examples have, with --label."
        )
    numbers: dict[float, str] = {}
    for name, row in first.items():
        if (number := _number(name)) is None:
            continue
        if number in numbers:
            earlier = numbers[number]
            raise RedxError(
                f"Labels of {path} write one number in two ways ({earlier!r:.40} in row {first[earlier]}, {name!r:.40} "
                f"in row {row}); write it in one way, as they would become two classes."
            )
        numbers[number] = name
    words = [name for name in first if name.lower() in TRUTH_WORDS]
    if words and (digits := [numbers[number] for number in (0, 1) if number in numbers]):
        raise RedxError(
            f"Labels of {path} mix numbers and words for yes and no ({digits[0]!r} in row {first[digits[0]]}, "
            f"{words[0]!r} in row {first[words[0]]}); write all of them in one way."
        )


def _number(name: str) -> float | None:
    """Return the number that a label writes, or None; `1e3`, `nan` and `١` are names."""
    return float(name) if NUMBER.fullmatch(name) and len(name) < MAX_DIGITS else None


def sorted_names(names: Sequence[str]) -> list[str]:
    """Return the distinct names in natural order, so that 9 comes before 10."""
    return sorted(set(names), key=natural_order)


# --- formats


def _read_parquet(path: Path) -> Iterator[Record]:
    """Yield the rows of a Parquet file, a few at a time; lists and records, which no task reads, are empty."""
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise RedxError("Parquet files need pyarrow; install with `pip install 'redx[tables]'`.") from error
    with open_file(path, MAX_BYTES, advice="split it into smaller files") as (file, _):
        try:
            with parquet.ParquetFile(file) as opened:
                columns, rows = opened.schema_arrow.names, opened.metadata.num_rows
                if len(set(columns)) < len(columns):
                    raise RedxError(f"{path} has a column twice; give every column a name of its own.")
                if len(columns) > MAX_COLUMNS or rows * len(columns) > MAX_VALUES:
                    raise RedxError(
                        f"{path} has {rows:,} rows of {len(columns):,} columns; give at most {MAX_VALUES:,} values and "
                        f"{MAX_COLUMNS:,} columns, only those that are needed."
                    )
                groups = (opened.metadata.row_group(number) for number in range(opened.num_row_groups))
                _check_unpacked(path, sum(group.total_byte_size for group in groups))
                nested = {field.name: [] for field in opened.schema_arrow if types.is_nested(field.type)}  # never read
                plain, unpacked = [name for name in columns if name not in nested], 0
                for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, columns=plain):
                    unpacked += batch.nbytes  # texts that many rows share lie in the file once
                    _check_unpacked(path, unpacked)
                    yield from (nested | row for row in batch.to_pylist())
        except RedxError:
            raise
        except Exception as error:
            why = " ".join(str(error).split())[:120] or type(error).__name__
            raise RedxError(f"{path} cannot be read as Parquet ({why}); write it anew.") from error


def _read_csv(path: Path) -> Iterator[tuple[int, Record | str]]:
    """Yield the rows of a CSV file with the line they start on; a str says what is wrong with a row."""
    text = read_text(path, MAX_BYTES)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)  # spreadsheets of some countries write semicolons
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    last_line = 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield last_line + 1, LARGE_FIELD if "field limit" in str(error) else f"is no CSV ({error})"
            return  # the rows after a broken one cannot be trusted
        line, last_line = last_line + 1, reader.line_num
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


def _parse_record(line: str, fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the JSON object on a line, or raise a ValueError that says what is wrong with it."""
    try:
        record = parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError("is not JSON") from error
    except (DuplicateKey, TooManyValues):
        raise
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
