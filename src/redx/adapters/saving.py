"""A composed language model as a folder of its own: adapters, routers, and a model card with the certified figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.adapters.library import (
    LIBRARY,
    OWNERSHIP,
    ROUTER,
    AdapterEntry,
    LibraryFile,
    add_adapter,
    read_adapter_file,
    read_library,
)
from redx.config import ModelConfig, RouterConfig
from redx.errors import RedxError
from redx.io.files import new_folder, write_bytes, write_json
from redx.io.manifest import MANIFEST, format_manifest, list_folder
from redx.io.reading import check_path, exists, is_file, is_folder, read_json
from redx.model.card import model_card

if TYPE_CHECKING:
    from redx.adapters.composed import ComposedLM

TAGS = ("peft", "lora")
LOAD = 'redx.adapters.composed.ComposedLM.from_pretrained("FOLDER")'


def save_composed(composed: ComposedLM, folder: Path) -> Path:
    """Write a composed model to a new folder, and return the folder.

    Parameters
    ----------
    composed
        A model whose adapters come from a run folder or from a folder that was saved before.
    folder
        The folder to write; it must not exist, or be empty.
    """
    check_path(folder)
    if exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise RedxError(f"{folder} exists and is not empty; choose another folder.")
    if composed.run is None:
        raise RedxError(
            "This model was not read from a folder; add its adapters with `redx adapters add RUN FOLDER` and read that."
        )
    library = read_library(composed.run)
    if missing := [name for name in composed.names if name not in library.names]:
        raise RedxError(f"The adapter {missing[0]!r} is not in {composed.run}; add it with `redx adapters add`.")
    if not composed.names:
        raise RedxError(f"There are no adapters in {composed.run}; add one with `redx adapters add`.")
    with new_folder(folder) as unfinished:
        for name in composed.names:
            source = composed.run / "adapters" / name
            add_adapter(unfinished, source, composed.base, name)
            if is_file(source / OWNERSHIP):
                write_bytes(unfinished / "adapters" / name / OWNERSHIP, read_adapter_file(source, OWNERSHIP))
        if library.router is not None:
            write_bytes(unfinished / ROUTER, read_adapter_file(composed.run, ROUTER))
            routed = {"router": library.router, "routed": library.routed}
            write_json(unfinished / LIBRARY, read_library(unfinished).model_copy(update=routed).model_dump(mode="json"))
        card = describe_library(read_library(unfinished), _figures(composed.run, composed.names, library))
        write_bytes(unfinished / "README.md", card.encode())
        write_bytes(unfinished / MANIFEST, format_manifest(list_folder(unfinished)))
    return folder


def _figures(run: Path, names: list[str], library: LibraryFile) -> dict[str, Any]:
    """Return the summary of the run, if it is that of exactly these adapters."""
    path = run.parent / "summary.json"
    if not is_file(path):
        return {}
    summary = read_json(path, dict)
    tested = summary.get("experts", {})
    hashes = {entry.name: entry.hash for entry in library.adapters if entry.name in names}
    return summary if {name: info.get("hash") for name, info in tested.items()} == hashes else {}


def describe_library(library: LibraryFile, figures: dict[str, Any]) -> str:
    """Return the README.md of a saved model.

    Parameters
    ----------
    library
        The adapters and their base.
    figures
        The summary of the run, or an empty dict for adapters that were not evaluated together.
    """
    config = ModelConfig(backbone=library.base, banks={}, main={}, router=library.router or RouterConfig(shape="keys"))
    outputs = f"next tokens; the base is not in this folder: its fingerprint is `{library.fingerprint}`"
    experts = [_describe(entry) for entry in library.adapters]
    return model_card(config, (), experts, figures, load=LOAD, outputs=outputs, tags=TAGS)


def _describe(entry: AdapterEntry) -> dict[str, Any]:
    size = f"{entry.method}, rank {entry.rank or '—'}, {entry.parameters:,} parameters, {entry.hash[:12]}"
    return {"domain": entry.name, "dtype": size}
