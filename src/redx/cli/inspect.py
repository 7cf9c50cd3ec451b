"""The verb `inspect`: what a file or folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, print_json, say, show_table

if TYPE_CHECKING:
    from redx.runs.inspection import Contents

MAX_SHOWN = 100  # characters of a value that are printed


def inspect(
    file: Annotated[Path, typer.Argument(help="any file or folder", metavar="FILE", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show what is inside a file of redx, a `.pt` or a folder, without running it.

    Example: `redx inspect runs/addition`
    """
    from redx.runs import inspection

    contents = inspection.inspect_path(file)
    print_json(_describe_contents(contents)) if as_json else _show_contents(contents)


def _describe_contents(contents: Contents) -> dict[str, Any]:
    """Return what a file holds as plain values."""
    return {
        "path": str(contents.path),
        "kind": contents.kind,
        "bytes": contents.bytes,
        "numbers": contents.numbers,
        "about": contents.about,
        "tensors": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "numbers": entry.numbers,
                "bytes": entry.bytes,
            }
            for entry in contents.entries
        ],
        "files": [_describe_contents(file) for file in contents.files],
    }


def _show_contents(contents: Contents) -> None:
    """Print what a file holds."""
    say(f"{contents.path}: {contents.kind}")
    for key, value in contents.about.items():
        text = value if isinstance(value, str) else json.dumps(value)
        text = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
        say(f"  {key}: {text}")
    if contents.entries:
        rows = [
            [
                entry.name,
                " × ".join(map(str, entry.shape)),
                entry.dtype,
                f"{entry.numbers:,}",
                f"{entry.bytes:,}",
            ]
            for entry in contents.entries
        ]
        show_table(["tensor", "shape", "dtype", "numbers", "bytes"], rows)
    if contents.files:
        rows = [
            [
                str(file.path.relative_to(contents.path)),
                file.kind,
                str(file.tensors),
                f"{file.numbers:,}",
                f"{file.bytes:,}",
            ]
            for file in contents.files
        ]
        show_table(["file", "kind", "tensors", "numbers", "bytes"], rows)
    say(f"{contents.tensors:,} tensors, {contents.numbers:,} numbers, {contents.bytes:,} bytes")
