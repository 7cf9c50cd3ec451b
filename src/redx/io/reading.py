"""The gate for every file from outside: regular files of a bounded size, text, JSON and TOML, one sentence for a fault.

Readers of arrays are in `array_files`, readers of tensors in `tensor_files`; both go through this module. No other
module opens a file that it has not written itself.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from redx.errors import RedxError
from redx.io import manifest

JSON_BYTES = 64 * 2**20  # size of the largest JSON file
JSON_DEPTH = 32  # lists and objects inside one another
JSON_VALUES = 2**21  # commas and brackets of one JSON text; every value becomes a Python object
TEXT_BYTES = 2**28  # size of the largest text file
TENSOR_BYTES = 2**36  # size of the largest file of tensors
HALVES = re.compile("[\ud800-\udfff]")  # lone surrogates, which no text can be encoded with
REPEAT = "repeat the run with --out ANOTHER"
TOML_BYTES = 2**20  # size of the largest TOML file


class DuplicateKey(ValueError):
    """A JSON object has a key twice."""


class TooManyValues(ValueError):
    """A JSON text has more values than fit into memory."""


@contextmanager
def guarded(path: Path | str, problem: str, advice: str) -> Iterator[None]:
    """Turn any error inside the block into one sentence that names the file.

    Parameters
    ----------
    path
        The file that is read inside the block.
    problem
        What is wrong with the file if the block fails, such as `is truncated`.
    advice
        What to do about it.

    Raises
    ------
    RedxError
        If the block raises an exception; a `RedxError` passes unchanged, and so do interrupts.

    Examples
    --------
    >>> with guarded("a.json", "is no number", "write it anew"):
    ...     int("x")
    Traceback (most recent call last):
    redx.errors.RedxError: a.json is no number; write it anew.
    """
    try:
        yield
    except RedxError:
        raise
    except Exception as error:
        raise RedxError(f"{path} {problem}; {advice}.") from error


def is_file(path: Path | str) -> bool:
    """Return whether there is a regular file; False for a path that no disk can have, such as one that is too long."""
    return os.path.isfile(path)


def is_folder(path: Path | str) -> bool:
    """Return whether there is a folder; False for a path that no disk can have, such as one that is too long."""
    return os.path.isdir(path)


def exists(path: Path | str) -> bool:
    """Return whether there is anything; False for a path that no disk can have, such as one that is too long."""
    return os.path.exists(path)


def check_path(path: Path | str) -> None:
    """Raise `RedxError` for a path that no file can have: with a NUL or half a character in it."""
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("a NUL")
    except ValueError as error:
        raise RedxError(f"No file or folder can be called {str(path)[:200]!a}; choose another name.") from error


@contextmanager
def open_file(path: Path, limit: int, missing: str = "", advice: str = REPEAT) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file inside a `with` block; devices, pipes and folders are refused before they are read.

    A file that a manifest lists is compared with it (`redx.io.manifest`).

    Parameters
    ----------
    path
        The file.
    limit
        Size of the largest file that is opened.
    missing
        What to say after `There is no PATH; ` if the file does not exist; the advice by default.
    advice
        What to do about a file that cannot be opened.

    Yields
    ------
    tuple of file and int
        The file in binary mode, and its size in bytes.

    Raises
    ------
    RedxError
        If there is no such file, or it is no regular file, too large, not readable or not as its manifest says.
    """
    check_path(path)
    file, size = _open(path, limit, missing, advice)
    with file:
        try:
            manifest.check_file(path, file)
        except manifest.ChangedFileError:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                raise
            file, size = _open(path, limit, missing, advice)  # it was replaced meanwhile, by a change of the folder
            manifest.check_file(path, file)
        with file:
            yield file, size


def _open(path: Path, limit: int, missing: str, advice: str) -> tuple[BinaryIO, int]:
    """Return a regular file, open, and its size; the parameters are those of `open_file`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise RedxError(f"There is no {path}; {missing or advice}.") from error
    except OSError as error:
        raise RedxError(f"{path} cannot be read ({error.strerror}); fix its permissions or give another.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise RedxError(f"{path} is a folder where a file belongs; move it away, or {advice}.")
        raise RedxError(f"{path} is a device or a pipe, not a regular file; {advice}.")
    if status.st_size > limit:
        os.close(descriptor)
        raise RedxError(f"{path} has {status.st_size:,} bytes, more than {limit:,} for such a file; {advice}.")
    return open(descriptor, "rb"), status.st_size


def read_bytes(path: Path, limit: int = TENSOR_BYTES, missing: str = "", advice: str = REPEAT) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; the parameters are those of `open_file`."""
    with open_file(path, limit, missing, advice) as (file, size), guarded(path, "cannot be read", advice):
        return file.read(size)


def read_text(path: Path, limit: int = TEXT_BYTES) -> str:
    """Return the text of a UTF-8 file of at most `limit` bytes; a byte order mark is left out."""
    if is_folder(path):
        raise RedxError(f"{path} is a folder; give the path of a file in it.")
    try:
        size = os.stat(path).st_size
    except (FileNotFoundError, ValueError) as error:
        raise RedxError(f"There is no file {path}; give the path of a text file.") from error
    except OSError as error:
        raise RedxError(f"Cannot read {path} ({error.strerror}); fix its permissions or give another file.") from error
    if size > limit:
        raise RedxError(f"{path} is larger than {limit:,} bytes; split it into smaller files.")
    content = read_bytes(path, limit, advice="give the path of a text file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RedxError(f"{path} is not UTF-8 text (line {line}); save it again in UTF-8.") from error


def parse_json(text: str, depth: int = JSON_DEPTH, finite: bool = True, values: int = JSON_VALUES) -> Any:
    """Return the value of a JSON text.

    Parameters
    ----------
    text
        The text.
    depth
        Largest number of lists and objects inside one another.
    finite
        Whether NaN and infinity are refused, which JSON does not have, but Python and some language models write.
    values
        Largest number of commas and opening brackets, which bounds the number of values.

    Returns
    -------
    Any
        Dicts, lists, text, finite numbers, truth values and None.

    Raises
    ------
    DuplicateKey
        If an object has a key twice, of which Python would silently take the last.
    TooManyValues
        If there are more values than allowed; they are counted before any memory is allocated.
    RecursionError
        If lists or objects are nested too deeply.
    ValueError
        If the text is no JSON (`json.JSONDecodeError`), or has NaN, infinity or far too large a number.
    """
    if len(text) > values and sum(map(text.count, ",[{")) > values:
        raise TooManyValues(f"has more than {values:,} values")
    number = _finite if finite else float
    value = json.loads(
        text, parse_float=number, parse_constant=number, parse_int=_integer, object_pairs_hook=_without_duplicates
    )
    level, levels = [value], 0
    while level:
        if levels > depth:
            raise RecursionError("nested too deeply")
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        levels += 1
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise DuplicateKey(f"has the key {key[:40]!a} twice")
    return record


def _finite(text: str) -> float:
    """Return a number; JSON has no NaN and no infinity, although Python reads both, and reads 1e999 as infinity."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _integer(text: str) -> int:
    """Return a whole number that a float can hold; Python itself refuses to convert numbers of thousands of digits."""
    if len(text) > 300:
        raise ValueError(f"{text[:20]}…")
    return int(text)


@lru_cache(maxsize=64)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def read_json(
    path: Path,
    schema: Any = None,
    check: Callable[[Any], None] | None = None,
    problem: str = "cannot be read (truncated or not JSON)",
    misfit: str = "does not hold what it should",
    missing: str = "give the folder of a finished run, as made by `redx run`",
    advice: str = REPEAT,
    limit: int = JSON_BYTES,
    depth: int = JSON_DEPTH,
    finite: bool = True,
) -> Any:
    """Return the value of a JSON file, after checking that it is what it should be.

    Parameters
    ----------
    path
        The file.
    schema
        A type that pydantic can check, such as a pydantic model, a dataclass or `dict[str, float]`; None for any JSON.
    check
        Raises an exception if the value cannot be used for another reason.
    problem, misfit, advice
        What is wrong with a file that is no JSON, or that does not fit the schema, and what to do about any fault.
    missing
        What to do if there is no such file.
    limit, depth
        Largest size in bytes, and largest number of lists and objects inside one another.
    finite
        Whether NaN and infinity are refused.

    Returns
    -------
    Any
        The value; with a schema, an instance of it.

    Raises
    ------
    RedxError
        If the file does not exist, is no JSON, has a key twice, NaN or half a character, or does not fit the schema.
    """
    content = read_bytes(path, limit, missing, advice)
    with guarded(path, problem, advice):
        text = content.decode("utf-8")
        try:
            value = parse_json(text, depth, finite)
        except (DuplicateKey, TooManyValues) as error:
            raise RedxError(f"{path} {error}; {advice}.") from error
        except RecursionError as error:
            raise RedxError(f"{path} is nested too deeply for a file of redx; {advice}.") from error
    if "\\u" in text and HALVES.search(json.dumps(value, ensure_ascii=False)):
        raise RedxError(f"{path} has half a character (a lone surrogate) in it; {advice}.")
    with guarded(path, misfit, advice):
        if schema is not None:
            value = _adapter(schema).validate_python(value)
        if check is not None:
            check(value)
    return value


# --- TOML


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Parameters
    ----------
    path
        The file, in UTF-8.

    Returns
    -------
    dict
        Values and tables by name.

    Raises
    ------
    RedxError
        If there is no such file, or it is too large, no UTF-8 or no TOML.
    """
    import tomllib

    text = read_text(path, TOML_BYTES)
    with guarded(path, "is no TOML file", "write NAME = VALUE in each line"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RedxError(f"{path} is no TOML: {str(error)[:200]}; correct it there.") from error
