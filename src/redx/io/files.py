"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from redx.errors import RedxError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside a file; once it is written and safe on the disk, it takes the file's place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        try:
            yield Path(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RedxError(
            f"Cannot write {path} ({error.strerror}); free space, fix its permissions or choose another folder."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the system allows it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MAX_NAME = 100


def natural_order(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key to sort by: numbers in names count as numbers, so that 9 stands before 10."""
    pieces = re.split(r"([0-9]+)", name.casefold())
    return [(0, int(piece), "") if at % 2 else (1, 0, piece) for at, piece in enumerate(pieces) if piece], name


def to_safe_name(name: str) -> str:
    """The name as a folder may be called; most stay as they are."""
    plain = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", unicodedata.normalize("NFC", name))
    return plain[:MAX_NAME].strip(" .")


def check_name(name: str) -> str:
    """The name itself, if it can be that of a folder."""
    if not name or to_safe_name(name) != name:
        raise RedxError(
            f"An expert cannot be called {name[:MAX_NAME]!r}, which is no name of a folder; "
            "leave out slashes, dots at its ends and signs such as : * ? and keep it under a hundred letters."
        )
    return name


Tensors = dict[str, Tensor]


def write_json(path: Path, value: object) -> None:
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RedxError(f"There is no {path}; give the folder of a finished run, as made by `redx run`.") from error
    except (OSError, ValueError) as error:
        raise RedxError(f"{path} cannot be read (truncated or not JSON); delete it and repeat the run.") from error


def write_tensors(path: Path, tensors: Tensors) -> None:
    write_bytes(path, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> Tensors:
    try:
        return load(path.read_bytes())
    except FileNotFoundError as error:
        raise RedxError(f"There is no {path}; repeat the `redx run` that should have made it.") from error
    except (OSError, SafetensorError) as error:
        raise RedxError(f"{path} is truncated or no safetensors file; delete it and repeat the run.") from error


def without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
