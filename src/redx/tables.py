"""A user's own files: rows of JSONL, CSV and Parquet, and arrays of .npz, with every fault named by its line or row."""

from __future__ import annotations

import csv
import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx import jsonl
from redx.errors import RedxError
from redx.io.files import natural_order

if TYPE_CHECKING:
    import numpy

Record = dict[str, Any]
Check = Callable[[Record], None]
FORMATS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
BROKEN = re.compile("[\0\ud800-\udfff]")
LIMIT = jsonl.LIMIT  # bytes of a text file that is read into memory at once
UNPACKED = 2**33  # bytes of arrays that are read into memory at once: small archives can hold any number of them


def read(path: Path, check: Check) -> list[Record]:
    """The rows of a table as records; `check` raises a ValueError that says what is wrong with one."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise RedxError(f"{path} is none of {', '.join(FORMATS)}; save your examples as one of these.")
    if not path.is_file():
        raise RedxError(f"There is no file {path}; give the path of a table with --data FILE.")
    if kind in (".jsonl", ".ndjson"):
        return jsonl.read(path, {}, check)
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
        raise refuse(path, word, faults)
    if not records:
        raise RedxError(f"{path} holds no examples; give a table with a row for each.")
    return records


def refuse(path: Path, word: str, faults: dict[int, str]) -> RedxError:
    """A refusal that names the faulty lines or rows, and what is wrong with the first."""
    first = min(faults)
    named = ", ".join(map(str, list(faults)[: jsonl.SHOWN]))
    more = f" and {len(faults) - jsonl.SHOWN} more" if len(faults) > jsonl.SHOWN else ""
    words, it, them = (word, "it", "it") if len(faults) == 1 else (f"{word}s", f"{word.lower()} {first}", "them")
    return RedxError(f"{words} {named}{more} of {path} cannot be used ({it} {faults[first]}); correct {them}.")


# --- values


def text(record: Record, column: str) -> str:
    """The text in a column, or a ValueError."""
    value = _value(record, column)
    if not isinstance(value, str):
        raise ValueError(f"has {value!r:.40} in the column '{column}', not text")
    if BROKEN.search(value):
        raise ValueError(f"has a NUL or half a character (a lone surrogate) in the column '{column}'")
    return value


def name(record: Record, column: str) -> str:
    """The label or domain in a column, as text: words as they are, whole numbers without a fraction."""
    return as_name(_value(record, column), column)


def as_name(value: object, column: str) -> str:
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


def _value(record: Record, column: str) -> object:
    if column not in record:
        raise ValueError(f"has no column '{column}', only {', '.join(map(repr, record)) or 'none at all'}")
    value = record[column]
    if value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value):
        raise ValueError(f"has no value in the column '{column}'")
    return value


def sort(names: Sequence[str]) -> list[str]:
    """Distinct names in natural order: numbers as numbers, so that 9 stands before 10."""
    return sorted(set(names), key=natural_order)


# --- formats


def _csv(path: Path) -> Iterator[tuple[int, Record | str]]:
    """Rows of a CSV file by the line they start on; a str is what is wrong with one."""
    lines = jsonl.text(path, LIMIT)
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


# --- arrays


def arrays(path: Path, needed: Sequence[str], optional: Sequence[str]) -> dict[str, numpy.ndarray]:
    """Arrays of an .npz file by name; nothing is unpickled."""
    import numpy

    if path.suffix.lower() != ".npz":
        raise RedxError(f"{path} is no .npz file; write one with numpy.savez and the arrays {' and '.join(needed)}.")
    if not path.is_file():
        raise RedxError(f"There is no file {path}; give the path of an .npz file with --data FILE.")
    found: dict[str, numpy.ndarray] = {}
    array = ""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > UNPACKED:
            raise RedxError(
                f"{path} unpacks to {size:,} bytes, more than {UNPACKED:,}; give fewer examples or float32."
            )
        with numpy.load(path, allow_pickle=False) as file:
            if lacking := [array for array in needed if array not in file.files]:
                has = ", ".join(file.files) or "none"
                raise RedxError(f"{path} has no array '{lacking[0]}', only {has}; add it with numpy.savez.")
            for array in (*needed, *optional):
                if array in file.files:
                    found[array] = file[array]
    except ValueError as error:  # what numpy says where it would have to unpickle
        raise RedxError(
            f"The array '{array}' of {path} holds Python objects or is damaged; save plain numbers or text (astype)."
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise RedxError(f"{path} cannot be read as .npz; write it anew with numpy.savez.") from error
    return found


def matrix(path: Path, name: str, array: numpy.ndarray) -> numpy.ndarray:
    """Features as float32, (N, D); NaN, infinity and other shapes are refused."""
    import numpy

    if array.ndim != 2 or not array.size:
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give one row of features an example.")
    if array.dtype.kind not in "fiub":
        raise RedxError(f"The array '{name}' of {path} holds {array.dtype}, not real numbers; convert it (astype).")
    with numpy.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused below
        numbers = array.astype(numpy.float32)
    if wrong := numpy.flatnonzero(~numpy.isfinite(numbers).all(1)).tolist():
        raise refuse(path, "Row", {row + 1: f"has NaN or infinity in '{name}'" for row in wrong})
    return numbers


def column(path: Path, name: str, array: numpy.ndarray, rows: int) -> list[str]:
    """Labels, domains or splits as text, one an example."""
    if array.shape != (rows,):
        raise RedxError(f"The array '{name}' of {path} has shape {array.shape}; give ({rows},), one value a row.")
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.tolist()]
    found: list[str] = []
    faults: dict[int, str] = {}
    for number, value in enumerate(values, 1):
        try:
            found.append(as_name(_value({name: value}, name), name))
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        raise refuse(path, "Row", faults)
    return found
