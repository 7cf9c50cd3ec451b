"""JSONL files, a record a line: read with every fault named by its line, and written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io import files

LIMIT = 2**28  # bytes of a file that is read into memory at once
SHOWN = 10  # faulty lines that a refusal names
NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "a truth value",
    list: "a list",
    dict: "an object",
}


def read(
    path: Path,
    fields: Mapping[str, type],
    check: Callable[[dict[str, Any]], None] = lambda record: None,
    limit_bytes: int = LIMIT,
) -> list[dict[str, Any]]:
    """The records of a file; each must have these fields with values of these types, and may have more.

    `check` raises a ValueError that says what else is wrong with a record.
    """
    records: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for number, line in enumerate(text(path, limit_bytes).split("\n"), 1):  # JSON text may hold other line ends
        if not line.strip():
            continue
        try:
            records.append(_record(line, fields))
            check(records[-1])
        except ValueError as error:
            faults[number] = str(error)
    if faults:
        first = min(faults)
        named = ", ".join(map(str, list(faults)[:SHOWN]))
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        lines, it, them = ("Line", "it", "it") if len(faults) == 1 else ("Lines", f"line {first}", "them")
        raise RedxError(f"{lines} {named}{more} of {path} cannot be used ({it} {faults[first]}); correct {them}.")
    if not records:
        raise RedxError(f"{path} is empty; give a JSONL file with a record on each line.")
    return records


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records, one a line."""
    try:
        content = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()
    except (TypeError, ValueError) as error:
        raise RedxError(f"A record for {path} cannot be written as JSON ({error}); leave out that value.") from error
    files.write_bytes(path, content)


def text(path: Path, limit_bytes: int = LIMIT) -> str:
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
            raise ValueError(f"has {json.dumps(value)[:40]} in the field '{name}', not {NAMES[kind]}")
    return record


def _finite(text: str) -> float:
    """JSON has no NaN and no infinity, although Python reads them, even from 1e999."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value
