"""Files that are written completely or not at all: bytes, JSON and tensors; and names that are safe for folders.

Files are read in `reading`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from redx.errors import RedxError
from redx.io.atomic import atomic_path as atomic_path
from redx.io.atomic import make_folder as make_folder
from redx.io.atomic import sync_folder as sync_folder
from redx.io.atomic import write_bytes as write_bytes

MAX_NAME = 100  # characters in the name of an expert
MAX_NAME_BYTES = 200  # in UTF-8; common file systems allow 255
FORBIDDEN = set('/\\:*?"<>|')
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (such as U+202E), surrogates, unassigned
DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}
RESERVED = {"all", "pooled", "router"}  # names that mean something else in a run folder
Tensors = dict[str, Tensor]


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, completely or not at all; NaN and infinity are refused."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Tensors, about: dict[str, str] | None = None) -> None:
    """Write tensors by name as a safetensors file, with metadata if given, completely or not at all."""
    write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, about))


def without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix` and a dot, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def natural_order(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key for a name, by which numbers in names are compared as numbers.

    Examples
    --------
    >>> sorted(["a10", "a9"], key=natural_order)
    ['a9', 'a10']
    """
    pieces = re.split(r"([0-9]+)", name.casefold())  # text and numbers in turn
    keys = []
    for position, piece in enumerate(pieces):
        number = piece.lstrip("0") or "0"
        if piece:
            keys.append((0, len(number), number) if position % 2 else (1, 0, piece))
    return keys, name


def to_safe_name(name: str) -> str:
    """Return a name that a folder can have on any common disk; most names stay unchanged.

    Forbidden and invisible characters become `_`, names of Windows devices get one at the end, and long names are cut.

    Examples
    --------
    >>> to_safe_name("reviews/books"), to_safe_name("con")
    ('reviews_books', 'con_')
    """
    characters = unicodedata.normalize("NFC", name)[:MAX_NAME]
    allowed = "".join("_" if one in FORBIDDEN or unicodedata.category(one) in HIDDEN else one for one in characters)
    while len(allowed.encode()) > MAX_NAME_BYTES:
        allowed = allowed[:-1]
    allowed = allowed.strip(" .")
    return f"{allowed}_" if allowed.partition(".")[0].upper() in DEVICES else allowed


def check_name(name: str) -> str:
    """Return the name of an expert unchanged, or raise `RedxError` if it cannot be used."""
    if not name or to_safe_name(name) != name:
        raise RedxError(
            f"An expert cannot be called {name[:MAX_NAME]!r}, since its folder has the same name; "
            f'use at most {MAX_NAME} characters, no slashes, none of : * ? " < > |, and no dots or spaces at the ends.'
        )
    if name.casefold() in RESERVED:
        raise RedxError(
            f"An expert cannot be called {name!r}, which has another meaning in a run; choose another name."
        )
    return name
