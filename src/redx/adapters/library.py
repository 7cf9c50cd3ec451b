"""The library of adapters in a run folder: added, listed and removed in transactions, each kept with its hash.

RUN/library.json   name and fingerprint of the base; name, hash, rank and modules of every adapter
RUN/adapters/NAME/ adapter_config.json, adapter_model.safetensors; router.safetensors and key.safetensors where trained
RUN/removed/       adapters that were removed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import CONFIG, WEIGHTS, AdapterInfo, check_adapter
from redx.adapters.methods import check_method
from redx.adapters.routers import Head
from redx.errors import RedxError
from redx.io.files import check_name, write_bytes, write_json, write_tensors
from redx.io.folders import check_links
from redx.io.reading import check_path, exists, is_file, is_folder, read_bytes, read_json
from redx.io.safetensors_files import read_tensors
from redx.runs.transaction import LOCK, Transaction, edit, recover, wait_for_writer
from redx.schema import StrictConfig

LIBRARY = "library.json"
MAX_CONFIG = 2**20  # bytes of adapter_config.json
HEADS = ("router", "key")  # heads that an adapter may have
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

    @property
    def names(self) -> list[str]:
        """Names of the adapters, in the order in which they were added."""
        return [entry.name for entry in self.adapters]


def read_library(run: Path) -> LibraryFile:
    """Return the library of a run folder, or of a folder that `ComposedLM.save_pretrained` wrote."""
    check_path(run)
    check_links(run)
    wait_for_writer(run, run)
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
    heads: dict[str, Head] | None = None,
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
    heads
        Its heads of the routers, `router` and `key`.

    Returns
    -------
    AdapterEntry
        The entry in library.json.
    """
    name = check_name(name or folder.resolve().name)
    info = check_adapter(folder, base)
    _check_new(run)
    run.mkdir(parents=True, exist_ok=True)
    with _locked(run):
        recover(run)
        library = create_library(run, base)
        if name.casefold() in [taken.casefold() for taken in library.names]:
            raise RedxError(f"There is an adapter {name!r} in {run} already; choose another name with --name.")
        check_method(info.method, [entry.method for entry in library.adapters])
        entry = AdapterEntry(name=name, **asdict(info))
        with edit(run) as transaction:
            _copy(transaction, folder, name, info, heads or {})
            changed = library.model_copy(update={"adapters": (*library.adapters, entry)})
            write_json(transaction.new(LIBRARY), changed.model_dump(mode="json"))
    return entry


def _check_new(run: Path) -> None:
    """Refuse a folder that holds something else than a library of adapters."""
    check_path(run)
    check_links(run)
    if exists(run) and not is_folder(run):
        raise RedxError(f"{run} is a file; choose another folder.")
    others = [path.name for path in run.iterdir() if path.name[0] != "."] if is_folder(run) else []
    if others and LIBRARY not in others:
        raise RedxError(f"{run} is not empty and holds no library of adapters; choose another folder.")


def _copy(transaction: Transaction, folder: Path, name: str, info: AdapterInfo, heads: dict[str, Head]) -> None:
    for file in (CONFIG, WEIGHTS):
        content = read_bytes(folder / file, MAX_CONFIG if file == CONFIG else 2**34)
        write_bytes(transaction.new(f"adapters/{name}/{file}"), content)
    for kind, head in heads.items():
        write_tensors(transaction.new(f"adapters/{name}/{kind}.safetensors"), head.tensors())


def remove_adapter(run: Path, name: str) -> Path:
    """Remove an adapter from a library, and return the folder that it is kept in."""
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


def set_heads(run: Path, heads: dict[str, dict[str, Head]]) -> None:
    """Write the heads of the routers, by adapter and kind, in one step."""
    with _locked(run), edit(run) as transaction:
        for name, kinds in heads.items():
            for kind, head in kinds.items():
                write_tensors(transaction.new(f"adapters/{name}/{kind}.safetensors"), head.tensors())


def read_heads(run: Path, names: list[str], kind: str) -> dict[str, Head]:
    """Return the heads of one kind by adapter; adapters without one are left out."""
    heads = {}
    for name in names:
        path = run / "adapters" / name / f"{kind}.safetensors"
        if is_file(path):
            tensors = read_tensors(path)
            shapes = {key: tensor.ndim for key, tensor in tensors.items()}
            if shapes != {"mean": 1, "scale": 1, "weight": 1, "bias": 0, "calibration": 1}:
                raise RedxError(f"{path} is no head of a router; repeat the run that writes it.")
            heads[name] = Head(**tensors)
    return heads


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
