"""Folders of models and experts: on this machine, or brought from the Hugging Face Hub."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.reading import exists

PATTERNS = ["*.json", "*.safetensors", "README.md"]  # files that are taken from the hub: none that can hold code
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_folder(name: str | Path, file: str, revision: str | None = None) -> Path:
    """Return the folder of this name, or else a copy of the repository of this name on the hub.

    Parameters
    ----------
    name
        A folder, or OWNER/NAME.
    file
        A file that the folder must hold.
    revision
        The revision on the hub.

    Raises
    ------
    RedxError
        Where there is neither.
    """
    folder = Path(name)
    if exists(folder) or not REPOSITORY.fullmatch(str(name)):
        return folder
    from huggingface_hub import snapshot_download

    try:
        copy = Path(snapshot_download(str(name), revision=revision, allow_patterns=PATTERNS))
    except Exception as error:
        raise RedxError(
            f"There is no folder {name}, and the hub has no such repository that can be read ({first_line(error)}); "
            "check the name, or give a folder."
        ) from error
    if not exists(copy / file):
        raise RedxError(f"The repository {name} holds no {file}, so it is nothing that redx wrote; check the name.")
    return _without_links(copy, cache_folder() / "hub" / str(name).replace("/", "--") / copy.name)


def _without_links(snapshot: Path, folder: Path) -> Path:
    """Return a copy of a snapshot, whose files are links into a cache, as files; one copy of each revision is kept."""
    if not exists(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as scratch:
            shutil.copytree(snapshot, Path(scratch) / "copy")
            try:
                (Path(scratch) / "copy").rename(folder)
            except OSError:
                if not exists(folder):  # otherwise another process was faster
                    raise
    return folder


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
