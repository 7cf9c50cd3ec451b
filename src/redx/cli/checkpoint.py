"""The verbs that write checkpoint files: export, shrink."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, print_json, say, show_table

if TYPE_CHECKING:
    from redx.runs.checkpoint import WrittenCheckpoint


def export(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="file to write", show_default="RUN-seed-N.safetensors")] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Write one seed of a run, the language model included, into one file: a full checkpoint.

    Example: `redx export runs/addition --out addition.safetensors`
    """
    from redx.runs import checkpoint

    written = checkpoint.export_run(folder, out, seed)
    size = written.after
    if as_json:
        return print_json({"file": str(written.path), "parameters": size.parameters, "bytes": size.bytes})
    say(f"{written.path}: {size.parameters:,} parameters, {size.bytes:,} bytes")


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
    """Write a smaller checkpoint: the last layers, and all tensors that are not part of the pretrained model.

    Example: `redx shrink addition.safetensors --trainable-last-n-layers 2 --dtype float16`
    """
    from redx.runs import shrinking

    written = shrinking.shrink(file, layers, dtype, out, keep or (), rule)
    print_json(_describe_written(written)) if as_json else _show_written(written)


def _describe_written(written: WrittenCheckpoint) -> dict[str, Any]:
    return {
        "file": str(written.path),
        "parameters": {"before": written.before.parameters, "after": written.after.parameters},
        "bytes": {"before": written.before.bytes, "after": written.after.bytes},
        "share": written.share,
        "left_out": written.left_out,
    }


def _show_written(written: WrittenCheckpoint) -> None:
    before, after = written.before, written.after
    share = after.parameters / before.parameters if before.parameters else 1.0
    rows = [
        ["parameters", f"{before.parameters:,}", f"{after.parameters:,}", f"{share:.2%}"],
        ["bytes", f"{before.bytes:,}", f"{after.bytes:,}", f"{written.share:.2%}"],
    ]
    show_table(["", "before", "after", "share"], rows)
    say(f"{written.path}: {len(written.left_out)} frozen tensors and optimiser states left out")
