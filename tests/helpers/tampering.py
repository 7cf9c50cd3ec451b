"""Ways in which a file of a run can change, and readers of the run that must notice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from redx.io import manifest
from redx.io.manifest import MANIFEST, list_files
from redx.runs import integrity

Change = Callable[[Path], None]


@contextmanager
def unverified() -> Iterator[None]:
    """Let every manifest count as empty inside the block, to see what readers say of files behind it."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(manifest, "_read", return_value={}))
        for name in ("_differing", "_stale_seeds"):
            stack.enter_context(mock.patch.object(integrity, name, return_value=[]))
        yield


def _bytes(change: Callable[[bytes], bytes]) -> Change:
    """Return a change of the content; size and times stay as they are where they can."""

    def apply(path: Path) -> None:
        status, content = path.stat(), path.read_bytes()
        path.write_bytes(change(content))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return apply


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _meaning(path: Path) -> None:
    """Change what a file says in a form that every reader accepts: values × 30, or one more key."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            about = file.metadata()
        scale_tensors(path, 30, about)
    elif path.suffix == ".json":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"more": 1}))
    else:
        path.write_text(path.read_text().replace("0", "1") + " ")


def _swap(path: Path) -> None:
    """Put the content of another file of the same kind in its place, or its own bytes in another order."""
    others = sorted(other for other in path.parents[1].rglob(f"*{path.suffix}") if other != path)
    other = next((other.read_bytes() for other in others if other.read_bytes() != path.read_bytes()), b"x")
    path.write_bytes(other)


def scale_tensors(path: Path, factor: float, about: dict[str, str] | None = None) -> None:
    """Multiply all numbers in a file of tensors."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(
        {name: tensor * factor if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
        path,
        about,
    )


CHANGES: dict[str, Change] = {
    "one bit": _bytes(_flip),
    "cut short": _bytes(lambda content: content[:-1]),
    "longer": _bytes(lambda content: content + b"\n"),
    "empty": _bytes(lambda content: b""),
    "zeros": _bytes(lambda content: bytes(len(content))),
    "reversed": _bytes(lambda content: content[::-1]),
    "half doubled": _bytes(lambda content: content[: len(content) // 2] * 2),
    "another meaning": _meaning,
    "another file": _swap,
    "missing": Path.unlink,
}


@contextmanager
def changed(path: Path, change: Change) -> Iterator[bool]:
    """Change a file inside the block; the value tells whether its content differs."""
    content = path.read_bytes()
    change(path)
    try:
        yield not path.exists() or path.read_bytes() != content
    finally:
        path.write_bytes(content)


def reseal(folder: Path) -> None:
    """Let the manifest of a folder list its files as they are now."""
    (folder / MANIFEST).write_bytes(manifest.format_manifest(manifest.list_folder(folder)))


@contextmanager
def resealed(*folders: Path) -> Iterator[None]:
    """Let the manifests of folders list their files as they are, inside the block."""
    kept = [(folder / MANIFEST, (folder / MANIFEST).read_bytes()) for folder in folders]
    for folder in folders:
        reseal(folder)
    try:
        yield
    finally:
        for path, content in kept:
            path.write_bytes(content)


def files_of(run: Path) -> list[str]:
    """Return the paths of all files of a run that must not change, manifests included."""
    places = {"": run} | {f"{path.name}/": path for path in run.glob("seed-*")}
    files = [f"{prefix}{name}" for prefix, place in places.items() for name in [MANIFEST, *list_files(place)]]
    return sorted(files)


def exchange(one: Path, other: Path) -> None:
    """Let two files or folders change places."""
    aside = one.with_name("aside")
    shutil.move(one, aside)
    shutil.move(other, one)
    shutil.move(aside, other)


def shift_tensors(path: Path) -> None:
    """Put zeros in the place of all numbers but one."""
    tensors = load_file(path)
    save_file(
        {name: torch.zeros_like(tensor).index_fill(0, torch.tensor([0]), 1) for name, tensor in tensors.items()}, path
    )


def reverse_tensors(path: Path) -> None:
    """Reverse the rows of all tensors in a file."""
    save_file({name: torch.flip(tensor, [0]).contiguous() for name, tensor in load_file(path).items()}, path)
