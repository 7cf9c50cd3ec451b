"""The verbs around checkpoint files: export, shrink, inspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, print_json, show_table

if TYPE_CHECKING:
    from redx.runs.checkpoint import WrittenCheckpoint
    from redx.runs.inspection import Contents

CHARACTERS = 100  # of a value that is shown


def export(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="file to write", show_default="RUN-seed-N.safetensors")] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Write everything of one seed of a run into one file, the language model included: a full checkpoint.

    Example: `redx export runs/addition --out addition.safetensors`
    """
    from redx.runs import checkpoint

    made = checkpoint.export_run(folder, out, seed)
    facts = {"file": str(made.path), "parameters": made.after.parameters, "bytes": made.after.bytes}
    if as_json:
        return print_json(facts)
    typer.echo(f"{made.path}: {made.after.parameters:,} parameters, {made.after.bytes:,} bytes")


def shrink(
    file: Annotated[Path, typer.Argument(help="full checkpoint, or .pt", metavar="FILE", show_default=False)],
    layers: Annotated[
        int,
        typer.Option(
            "--trainable-last-n-layers", min=0, help="layers of the language model to keep", show_default=False
        ),
    ],
    dtype: Annotated[
        str | None, typer.Option(help="store matrices in float32, float16 or bfloat16", show_default="as they are")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file to write", show_default="FILE.slim.safetensors")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="keep tensors whose names begin so; repeatable")] = None,
    rule: Annotated[str | None, typer.Option(help="keep only the bank that this rule reads, such as red")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep only what was trained: the last layers, and all that is no part of the pretrained model.

    Example: `redx shrink addition.safetensors --trainable-last-n-layers 2 --dtype float16`
    """
    from redx.runs import shrinking

    made = shrinking.shrink(file, layers, dtype, out, keep or (), rule)
    print_json(_tell_made(made)) if as_json else _show_made(made)


def _tell_made(made: WrittenCheckpoint) -> dict[str, Any]:
    return {
        "file": str(made.path),
        "parameters": {"before": made.before.parameters, "after": made.after.parameters},
        "bytes": {"before": made.before.bytes, "after": made.after.bytes},
        "share": made.share,
        "left_out": made.left_out,
    }


def _show_made(made: WrittenCheckpoint) -> None:
    before, after = made.before, made.after
    share = after.parameters / before.parameters if before.parameters else 1.0
    rows = [
        ["parameters", f"{before.parameters:,}", f"{after.parameters:,}", f"{share:.2%}"],
        ["bytes", f"{before.bytes:,}", f"{after.bytes:,}", f"{made.share:.2%}"],
    ]
    show_table(["", "before", "after", "share"], rows)
    typer.echo(f"{made.path}: {len(made.left_out)} frozen tensors or states of training left out")


def inspect(
    file: Annotated[Path, typer.Argument(help="any file or folder", metavar="FILE", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show what is inside a file of redx, a `.pt` or a folder, without running it.

    Example: `redx inspect runs/addition`
    """
    from redx.runs import inspection

    found = inspection.inspect_path(file)
    print_json(_tell(found)) if as_json else _show(found)


def _tell(found: Contents) -> dict[str, Any]:
    """A look at a file as plain values."""
    return {
        "path": str(found.path),
        "kind": found.kind,
        "bytes": found.bytes,
        "numbers": found.numbers,
        "about": found.about,
        "tensors": [
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": each.dtype,
                "numbers": each.numbers,
                "bytes": each.bytes,
            }
            for each in found.entries
        ],
        "files": [_tell(each) for each in found.files],
    }


def _show(found: Contents) -> None:
    """A look at a file for people; what stands in it is text, never markup."""
    from rich.markup import escape

    typer.echo(f"{found.path}: {found.kind}")
    for key, value in found.about.items():
        text = value if isinstance(value, str) else json.dumps(value)
        text = text if len(text) <= CHARACTERS else text[:CHARACTERS] + "…"
        typer.echo(f"  {_printable(key)}: {_printable(text)}")
    if found.entries:
        rows = [
            [escape(each.name), " × ".join(map(str, each.shape)), each.dtype, f"{each.numbers:,}", f"{each.bytes:,}"]
            for each in found.entries
        ]
        show_table(["tensor", "shape", "dtype", "numbers", "bytes"], rows)
    if found.files:
        rows = [
            [
                escape(_printable(str(each.path.relative_to(found.path)))),
                escape(_printable(each.kind)),
                str(each.tensors),
                f"{each.numbers:,}",
                f"{each.bytes:,}",
            ]
            for each in found.files
        ]
        show_table(["file", "kind", "tensors", "numbers", "bytes"], rows)
    typer.echo(f"{found.tensors:,} tensors, {found.numbers:,} numbers, {found.bytes:,} bytes")


def _printable(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
