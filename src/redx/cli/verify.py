"""The verbs `verify` and `sign`: whether files are as they were written, and who wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import AsJson, print_json, say, show_table

SHOWN = 100  # files that differ
Signed = Annotated[
    Path | None,
    typer.Argument(help="a run, a saved model or an expert", metavar="FOLDER", show_default=False),
]


def verify(
    folder: Annotated[
        Path, typer.Argument(help="a run, a saved model or an expert", metavar="FOLDER", show_default=False)
    ],
    key: Annotated[
        Path | None, typer.Option(help="public key, FILE.pub, of the person who should have signed the folder")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every file of a run with its manifest, or with the signature of a person; exit code 1 if any differs.

    Example: `redx verify runs/toy`
    """
    from redx.runs.integrity import verify_folder, verify_signature

    differences = verify_folder(folder) if key is None else verify_signature(folder, key)
    if as_json:
        files = [difference._asdict() for difference in differences]
        print_json({"folder": str(folder), "ok": not differences, "files": files})
    elif differences:
        rows = [list(difference) for difference in differences[:SHOWN]]
        show_table(["file", "problem"], rows, f"{folder}: files that differ")
        if len(differences) > SHOWN:
            say(f"and {len(differences) - SHOWN:,} more, which --json shows")
        say("Restore these files from a copy, or make the folder anew elsewhere; `redx run` computes reports again.")
    else:
        how = "as redx wrote it" if key is None else f"as it was signed by {key}"
        say(f"every file of {folder} is {how}")
    if differences:
        raise typer.Exit(1)


def sign(
    folder: Signed = None,
    key: Annotated[Path | None, typer.Option(help="private key to sign with")] = None,
    new_key: Annotated[Path | None, typer.Option(help="write a new private key here, and FILE.pub beside it")] = None,
    as_json: AsJson = False,
) -> None:
    """Sign the files of a run, a saved model or an expert; `redx verify FOLDER --key FILE.pub` checks the signature.

    Example: `redx sign runs/toy --key me.key`
    """
    from redx.errors import RedxError
    from redx.io.signing import make_key
    from redx.runs.integrity import sign_folder

    if (folder is None) != (key is None) or (folder is None and new_key is None):
        raise RedxError("Give --new-key FILE to make a key, or FOLDER and --key FILE to sign.")
    made = {"key": str(new_key), "public": str(make_key(new_key))} if new_key else {}
    signed = {}
    if folder is not None and key is not None:
        signed = {"folder": str(folder), "files": sign_folder(folder, key), "by": str(key)}
    if as_json:
        return print_json(made | signed)
    if made:
        say(f"keep {made['key']} to yourself, and give {made['public']} to those who verify")
    if signed:
        say(f"signed {signed['files']} files of {folder}")
