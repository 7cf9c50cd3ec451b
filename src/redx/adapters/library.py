"""The library of adapters in a folder: added, listed and removed in transactions, each kept with its hash.

The folder is that of one seed of a run, one that `ComposedLM.save_pretrained` wrote, or a library without a run.

FOLDER/library.json   name and fingerprint of the base; name, hash, rank and modules of every adapter; the router
FOLDER/adapters/NAME/ adapter_config.json, adapter_model.safetensors; ownership.safetensors where it has a score
FOLDER/router.safetensors  the trained router, if any
FOLDER/removed/       adapters that were removed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field
from torch import nn

from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import CONFIG, WEIGHTS, check_adapter
from redx.adapters.methods import check_method
from redx.adapters.routing import restore_score
from redx.config import RouterConfig, StrictConfig
from redx.errors import RedxError
from redx.io.files import check_name, write_bytes, write_json
from redx.io.folders import check_links
from redx.io.manifest import require_manifest
from redx.io.reading import check_path, exists, guarded, is_file, is_folder, read_bytes, read_json
from redx.io.safetensors_files import read_tensors
from redx.models.router import TrainedRouter, build_router
from redx.runs.folder import choose_seed, read_config
from redx.runs.transaction import JOURNAL, LOCK, edit, recover, wait_for_writer

LIBRARY = "library.json"
MAX_CONFIG = 2**20  # bytes of adapter_config.json
OWNERSHIP = "ownership.safetensors"  # the ownership score of an adapter
ROUTER = "router.safetensors"
Text = Annotated[str, Field(max_length=4096)]


class AdapterEntry(StrictConfig):
    """An adapter in library.json."""

    name: Text
    hash: Text
    method: Text
    rank: int | None
    modules: tuple[Text, ...]
    parameters: int
    base: Text


class LibraryFile(StrictConfig):
    """The content of library.json."""

    base: Text
    fingerprint: Text
    adapters: tuple[AdapterEntry, ...] = ()
    router: RouterConfig | None = None
    routed: tuple[Text, ...] = ()  # names of the adapters that the router has a gate for, in order

    @property
    def names(self) -> list[str]:
        """Names of the adapters, in the order in which they were added."""
        return [entry.name for entry in self.adapters]


def library_folder(folder: Path, seed: int | None = None) -> Path:
    """Return the folder with library.json: the folder itself, or for a run that of one of its seeds."""
    if not is_file(folder / "config.json") or exists(folder / LIBRARY):
        return folder
    config, seed = choose_seed(folder, seed)
    if config.adapters is None:
        raise RedxError(f"{folder} is a run of '{config.task}', which has no adapters; see `redx experts`.")
    return folder / f"seed-{seed}"


def holds_adapters(folder: Path) -> bool:
    """Return whether a folder is a library of adapters, or a run of them."""
    check_path(folder)
    if is_file(folder / "config.json"):
        return read_config(folder).adapters is not None
    return exists(folder / LIBRARY)


def read_library(run: Path) -> LibraryFile:
    """Return the library in a folder."""
    check_path(run)
    check_links(run)
    wait_for_writer(run, run)
    for marker in ("stages.json", "README.md"):  # of a seed, and of a saved model
        require_manifest(run, marker)
    return read_json(
        run / LIBRARY,
        LibraryFile,
        misfit="does not describe a library of adapters",
        missing="give a folder that `redx run adapters` or `redx adapters add` made",
        advice="restore the folder from a copy",
    )


def open_base(library: LibraryFile, backbone: str | None = None, device: str = "cpu") -> BaseLM:
    """Return the base of a library, or refuse a model that is not the one that its adapters were checked against."""
    base = load_base(backbone or library.base, device)
    if base.fingerprint != library.fingerprint:
        raise RedxError(
            f"{base.name} is not the base of these adapters (fingerprint {base.fingerprint}, not "
            f"{library.fingerprint}); give the folder of the right one with --backbone."
        )
    return base


def describe_adapter(folder: Path, base: BaseLM, name: str) -> AdapterEntry:
    """Return the entry of a checked adapter."""
    return AdapterEntry(name=check_name(name), **asdict(check_adapter(folder, base)))


def create_library(run: Path, base: BaseLM) -> LibraryFile:
    """Return the library of a run folder; make an empty one where there is none yet."""
    if exists(run / LIBRARY):
        library = read_library(run)
        if library.fingerprint != base.fingerprint:
            raise RedxError(
                f"{run} holds adapters of another base ({library.base}, fingerprint {library.fingerprint}); "
                "choose another folder."
            )
        return library
    library = LibraryFile(base=base.name, fingerprint=base.fingerprint)
    write_json(run / LIBRARY, library.model_dump(mode="json"))
    return library


def add_adapter(
    run: Path,
    folder: Path,
    base: BaseLM,
    name: str | None = None,
) -> AdapterEntry:
    """Add the adapter in a folder to a library.

    Parameters
    ----------
    run
        The run folder; a new folder becomes a library.
    folder
        Folder as `PeftModel.save_pretrained` writes it.
    base
        The base that the adapter must fit.
    name
        Name in the library; the name of the folder by default.

    Returns
    -------
    AdapterEntry
        The entry in library.json.
    """
    entry = describe_adapter(folder, base, name or folder.resolve().name)
    _check_new(run)
    run.mkdir(parents=True, exist_ok=True)
    with _locked(run):
        recover(run)
        library = create_library(run, base)
        if entry.name.casefold() in [taken.casefold() for taken in library.names]:
            raise RedxError(f"There is an adapter {entry.name!r} in {run} already; choose another name with --name.")
        check_method(entry.method, [other.method for other in library.adapters])
        with edit(run) as transaction:
            for file in (CONFIG, WEIGHTS):
                write_bytes(transaction.new(f"adapters/{entry.name}/{file}"), read_adapter_file(folder, file))
            changed = library.model_copy(update={"adapters": (*library.adapters, entry)})
            write_json(transaction.new(LIBRARY), changed.model_dump(mode="json"))
    return entry


def complete_change(run: Path) -> None:
    """Complete a change of a library that was interrupted, as every verb that changes one does."""
    check_path(run)
    if exists(run / JOURNAL):
        check_links(run)
        with _locked(run):
            recover(run)


def _check_new(run: Path) -> None:
    """Refuse a folder that holds something else than a library of adapters."""
    check_path(run)
    check_links(run)
    if exists(run) and not is_folder(run):
        raise RedxError(f"{run} is a file; choose another folder.")
    others = [path.name for path in run.iterdir() if path.name[0] != "."] if is_folder(run) else []
    if others and LIBRARY not in others:
        raise RedxError(f"{run} is not empty and holds no library of adapters; choose another folder.")


def read_adapter_file(folder: Path, file: str) -> bytes:
    """Return the content of a file of an adapter, or refuse one that is too large."""
    return read_bytes(folder / file, MAX_CONFIG if file == CONFIG else 2**34)


def remove_adapter(run: Path, name: str) -> Path:
    """Remove an adapter from a library, and return the folder that it is kept in."""
    complete_change(run)
    library = read_library(run)
    if name not in library.names:
        raise RedxError(f"There is no adapter {name!r} in {run}; choose one of {', '.join(library.names) or 'none'}.")
    with _locked(run):
        library = read_library_locked(run)
        entry = next(entry for entry in library.adapters if entry.name == name)
        number = 0
        while exists(run / (target := f"removed/{name}-{entry.hash[:8]}-{number}")):
            number += 1
        with edit(run) as transaction:
            transaction.move(f"adapters/{name}", target)
            kept = tuple(other for other in library.adapters if other.name != name)
            write_json(transaction.new(LIBRARY), library.model_copy(update={"adapters": kept}).model_dump(mode="json"))
    return run / target


def read_library_locked(run: Path) -> LibraryFile:
    """Return the library of a folder that is locked by the caller."""
    recover(run)
    return read_json(run / LIBRARY, LibraryFile, misfit="does not describe a library of adapters")


def read_scores(run: Path, names: Sequence[str], width: int) -> dict[str, nn.Module]:
    """Return the ownership scores on states of this width by adapter; adapters without one are left out."""
    scores = {}
    for name in names:
        path = run / "adapters" / check_name(name) / OWNERSHIP
        if is_file(path):
            with guarded(path, "is no ownership score of an adapter of this model", "repeat the run that writes it"):
                scores[name] = restore_score(read_tensors(path), width)
    return scores


def read_router(run: Path, library: LibraryFile, width: int) -> TrainedRouter | None:
    """Return the trained router of a library on states of this width, or None where it has none."""
    if library.router is None:
        return None
    with guarded(run / ROUTER, "is no router of these adapters", "repeat the run that writes it"):
        network = build_router(width, len(library.routed), library.router)
        network.load_state_dict(read_tensors(run / ROUTER))
    return TrainedRouter(network, library.routed)


def adapter_folder(run: Path, entry: AdapterEntry, base: BaseLM) -> Path:
    """Return the folder of an adapter, after checking that it is the one that was added."""
    folder = run / "adapters" / check_name(entry.name)
    if check_adapter(folder, base).hash != entry.hash:
        raise RedxError(f"{folder} was changed after it was added; remove the adapter and add it again.")
    return folder


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    try:
        with FileLock(run / LOCK, timeout=1):
            yield
    except Timeout as error:
        raise RedxError(f"{run} is being changed by another process; repeat the command when it has ended.") from error
    except OSError as error:
        raise RedxError(f"Cannot write to {run} ({error.strerror}); fix its permissions.") from error
