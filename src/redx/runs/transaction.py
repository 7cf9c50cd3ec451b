"""Transactions on the folder of a seed or a run: a change happens completely or not at all, wherever it is interrupted.

    1. New files of the seed, and those of the run that follow from them, are written to a scratch folder, `.redx-edit`;
       the run is as before.
    2. `.journal.json` is written atomically and lists the moves that put them in place: the commit point.
    3. The moves are made, and the journal is deleted.

A process that dies before step 2 leaves a scratch folder, which the next writer deletes: the run is as before. One that
dies after step 2 leaves a journal, which the next writer completes, or `redx recover`: the run is as afterwards. Every
move can be repeated. `state.json` counts the changes, so that a reader notices a change while it reads. A reader never
writes: it waits for a writer that is at work, and refuses a run whose change was interrupted.

The new `manifest.json` of the seed, and that of the run, is the last of the files that are put in place: until then a
reader accepts what either manifest lists (`redx.io.manifest`).

A run may come from a stranger, and so may its journal. So a journal may move only what a change of redx moves, inside
the folder, and no symbolic link is followed on the way (`redx.io.folders`).

A machine that goes down keeps the entries of a folder only as they were when that folder was last flushed. So new files
and the journal are flushed before the moves, where a move leads to before where it came from, and both before the
journal is deleted.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field

from redx.errors import RedxError
from redx.io.files import sync_folder, write_bytes, write_json
from redx.io.folders import Below
from redx.io.manifest import (
    MANIFEST,
    Entries,
    format_manifest,
    hash_file,
    is_complete,
    list_files,
    list_folder,
    read_manifest,
)
from redx.io.reading import exists, read_json

JOURNAL, SCRATCH, STATE, LOCK = ".journal.json", ".redx-edit", "state.json", ".lock"
WAIT = 60.0  # seconds that a reader waits for a writer to finish its moves
PAUSE = 0.02  # seconds between two looks
RETRIES = 5  # times that a reader starts again because the run was changed meanwhile
FILE = re.compile(r"[a-z][a-z0-9_-]*\.(json|jsonl|safetensors|md)")  # names of files that a change may replace
# files of the run that follow from the seeds
RUN_FILES = ("results.jsonl", "summary.json", "report.html", "report.md", "figures", MANIFEST)
FOLDERS = ("experts", "adapters", "removed")  # folders of named folders

RESTORE = "restore the run from a copy"

Value = TypeVar("Value")


class JournalFile(BaseModel):
    """The content of `.journal.json`."""

    moves: list[list[str]]


class StateFile(BaseModel):
    """The content of `state.json`."""

    version: int = Field(ge=0, le=2**53, strict=True)


class Transaction:
    """A change of the folder of a seed, or of a run, that is being prepared.

    Parameters
    ----------
    folder
        The folder. The run must be locked by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._moves: list[list[str]] = []
        self._adopted: list[str] | None = None
        _remove_scratch(folder)

    def new(self, relative: str) -> Path:
        """Return where to write the new content of a file or folder; on commit it replaces the old content."""
        self._add("replace", relative)
        return self.folder / SCRATCH / "new" / relative

    def new_of_run(self, relative: str) -> Path:
        """Return where to write the new content of a file or folder of the run, which is the folder above."""
        self._add("publish", relative)
        return self.folder / SCRATCH / "run" / relative

    def move(self, source: str, target: str) -> None:
        """Move a file or folder on commit; the target must not exist."""
        self._add("move", source, target)

    def adopt(self, *names: str) -> None:
        """List files in the manifest that are in place already, and begin one where there is none.

        Parameters
        ----------
        *names
            Files and folders of this change; in a folder that is not finished, all files count that are not listed.
        """
        self._adopted = [*(self._adopted or []), *names]

    def entries(self) -> Entries:
        """Return what the manifest of the folder lists after the change, as far as it is prepared."""
        entries = read_manifest(self.folder) or {}
        if self._adopted is not None:
            complete = is_complete(entries)
            entries = {name: entry for name, entry in entries.items() if name.partition("/")[0] not in self._adopted}
            for name in list_files(self.folder):
                if name not in entries and (not complete or name.partition("/")[0] in self._adopted):
                    entries[name] = hash_file(self.folder / name)
        return _after(entries, self._moves, "replace", self.folder / SCRATCH / "new")

    def _add(self, *move: str) -> None:
        if not _is_known(move):
            raise RedxError(f"A change of {self.folder} cannot touch {move[-1]!r}; choose another name.")
        self._moves.append(list(move))

    def commit(self) -> None:
        """Make the change; afterwards the folder is as if it had been made in one step."""
        version = read_version(self.folder) + 1
        write_json(self.new(STATE), {"version": version})
        self._write_manifests()
        try:
            for path in [*(self.folder / SCRATCH).rglob("*"), self.folder / SCRATCH, self.folder]:
                if path.is_dir():
                    sync_folder(path)
        except OSError as error:
            raise RedxError(f"Cannot write to {self.folder} ({error.strerror}); nothing was changed.") from error
        write_json(self.folder / JOURNAL, {"moves": self._moves})
        recover(self.folder)

    def _write_manifests(self) -> None:
        """Write the manifests of the folder and of the run, as the last files to be put in place."""
        run = self.folder.parent
        if any(kind == "publish" for kind, *_ in self._moves) and (entries := read_manifest(run)) is not None:
            entries = _after(entries, self._moves, "publish", self.folder / SCRATCH / "run")
            write_bytes(self.new_of_run(MANIFEST), format_manifest(entries))
        if self._adopted is not None or read_manifest(self.folder) is not None:
            content = format_manifest(self.entries())
            write_bytes(self.new(MANIFEST), content)


def _after(entries: Entries, moves: list[list[str]], replacing: str, new: Path) -> Entries:
    """Return what a manifest lists after the moves of a change."""
    entries = dict(entries)
    for kind, *names in moves:
        if kind == "move" and replacing == "replace":
            moved = {name for name in entries if name.startswith(f"{names[0]}/")}
            entries |= {f"{names[1]}/{name[len(names[0]) + 1 :]}": entries.pop(name) for name in moved}
        elif kind == replacing:
            (relative,) = names
            kept = {name: entry for name, entry in entries.items() if not f"{name}/".startswith(f"{relative}/")}
            path = new / relative
            if path.is_dir():
                entries = kept | {f"{relative}/{name}": entry for name, entry in list_folder(path).items()}
            elif path.exists():
                entries = kept | {relative: hash_file(path)}
    return entries


@contextmanager
def edit(folder: Path) -> Iterator[Transaction]:
    """Prepare a change inside the block and commit it at its end; after an error nothing has changed."""
    transaction = Transaction(folder)
    try:
        yield transaction
        transaction.commit()
    except BaseException:
        if not os.path.lexists(folder / JOURNAL):
            with suppress(RedxError):  # the next writer removes what is left
                _remove_scratch(folder)
        raise


def recover(folder: Path) -> None:
    """Complete the moves of a committed change, if there is one, and remove what is left of an uncommitted one.

    Parameters
    ----------
    folder
        The folder of a seed. The run must be locked by the caller.

    Raises
    ------
    RedxError
        If the journal is not one that a change of redx writes, or if something cannot be moved; no link is followed.
    """
    try:
        with Below(folder) as below:
            if (kind := below.kind(JOURNAL)) is not None:
                moves = _read_journal(folder / JOURNAL) if kind == "file" else [["is a link"]]
                if not all(map(_is_known, moves)) or any(below.kind(one) == "other" for one in _sources(moves)):
                    raise RedxError(f"{folder / JOURNAL} is not a journal of redx; {RESTORE}.")
                renewed = {names[0] for kind, *names in moves if kind == "replace"}
                for move in moves:
                    if move[0] == "replace":
                        _replace(below, move[1])
                    elif move[0] == "move":
                        _move(below, move[1], move[2], renewed)
                _publish(folder, [names[0] for kind, *names in moves if kind == "publish"])
                for parent in _to_sync(moves):
                    below.sync(parent)
                below.remove(JOURNAL)
                below.sync()
    except OSError as error:
        raise RedxError(
            f"Cannot complete a change in {folder} ({error.strerror}); fix its permissions and repeat the command."
        ) from error
    _remove_scratch(folder)


def _read_journal(path: Path) -> list[list[str]]:
    return read_json(path, JournalFile, misfit="is damaged", advice=RESTORE).moves


def _is_known(move: list[str] | tuple[str, ...]) -> bool:
    """Return whether a change of redx can hold this move."""
    kind, *names = move or ("",)
    if kind == "move":
        folders = [_named_folder(name) for name in names]
        return len(names) == 2 and folders[0] in ("experts", "adapters") and folders[1] == "removed"
    if kind == "publish":
        return len(names) == 1 and names[0] in RUN_FILES
    return kind == "replace" and len(names) == 1 and _may_be_replaced(names[0])


def _may_be_replaced(relative: str) -> bool:
    parent, _, name = relative.rpartition("/")
    if FILE.fullmatch(name):
        return parent == "" or _named_folder(parent) == "adapters"
    return relative in ("parts", "report.html", "figures") or _named_folder(relative) == "experts"


def _named_folder(relative: str) -> str | None:
    """Return `experts` for `experts/NAME`, and so on; None for a path of another form."""
    parent, _, name = relative.partition("/")
    return parent if parent in FOLDERS and name and name[0] != "." and not {"/", "\0"} & set(name) else None


def _sources(moves: list[list[str]]) -> list[str]:
    """Return where the entries come from that a journal moves."""
    places = {"move": "", "replace": f"{SCRATCH}/new/", "publish": f"{SCRATCH}/run/"}
    return [places[kind] + names[0] for kind, *names in moves]


def _to_sync(moves: list[list[str]]) -> list[str]:
    """Return the folders whose entries a journal changes: where a move leads to before where it came from."""
    left = {_parent(source) for source in _sources(moves)}
    reached = {"", *(_parent(names[-1]) for kind, *names in moves if kind != "publish")}
    return [*sorted(reached - left), *sorted(reached & left), *sorted(left - reached)]


def _parent(relative: str) -> str:
    return relative.rpartition("/")[0]


def _replace(below: Below, relative: str) -> None:
    new = f"{SCRATCH}/new/{relative}"
    if below.kind(new) is None:
        return  # done before
    if below.kind(relative) == "folder":  # a file is replaced in one step
        _set_aside(below, relative)
    below.rename(new, relative)


def _publish(folder: Path, names: list[str]) -> None:
    """Put files of the run in place, which is the folder above."""
    if not names:
        return
    scratch = f"{folder.name}/{SCRATCH}"
    with Below(folder.parent.resolve()) as above:
        for name in names:
            if above.kind(new := f"{scratch}/run/{name}") is None:
                continue  # done before
            if above.kind(name) == "folder":
                if above.kind(old := f"{scratch}/old run/{name}") is not None:
                    above.remove(old)
                above.rename(name, old)
            above.rename(new, name)
        above.sync()


def _move(below: Below, source: str, target: str, renewed: set[str]) -> None:
    if below.kind(target) is None:
        below.rename(source, target)
    elif source not in renewed and below.kind(source) is not None:
        _set_aside(below, source)  # done before, but only the target's folder was flushed to disk


def _set_aside(below: Below, relative: str) -> None:
    """Move a folder to where it is deleted after the change."""
    old = f"{SCRATCH}/old/{relative}"
    if below.kind(old) is not None:
        below.remove(old)
    below.rename(relative, old)


def _remove_scratch(folder: Path) -> None:
    if not exists(folder):
        return
    try:
        with Below(folder) as below:
            if below.kind(SCRATCH) == "folder":
                below.remove(SCRATCH)
    except OSError as error:
        raise RedxError(f"Cannot delete {folder / SCRATCH} ({error.strerror}); fix its permissions.") from error


def read_version(folder: Path) -> int:
    """Return how often the folder of a seed was changed; 0 for a run that was never changed."""
    if not exists(folder / STATE):
        return 0
    return read_json(folder / STATE, StateFile, misfit="is damaged", advice=RESTORE).version


def consistently(run: Path, folder: Path, read: Callable[[], Value]) -> Value:
    """Return what `read` returns for one state of a seed's folder, between two changes.

    Parameters
    ----------
    run
        The run folder, which holds the lock.
    folder
        The folder of the seed that is read.
    read
        Reads the files; it is called again when the folder was changed meanwhile.
    """
    for attempt in range(RETRIES):
        wait_for_writer(run, folder)
        version = read_version(folder)
        try:
            value = read()
        except RedxError:
            if attempt == RETRIES - 1 or _is_unchanged(folder, version):
                raise
            continue
        if _is_unchanged(folder, version):
            return value
    raise RedxError(f"{folder} is being changed all the time; repeat the command when that has ended.")


def _is_unchanged(folder: Path, version: int) -> bool:
    return not os.path.lexists(folder / JOURNAL) and read_version(folder) == version


def wait_for_writer(run: Path, folder: Path) -> None:
    """Return when no change of a folder is under way; nothing is written.

    Parameters
    ----------
    run
        The run folder, which holds the lock.
    folder
        The folder of a seed.

    Raises
    ------
    RedxError
        If a change was interrupted, and has to be completed by a writer.
    """
    deadline = time.monotonic() + WAIT
    while os.path.lexists(folder / JOURNAL):
        if not _has_writer(run):
            if not os.path.lexists(folder / JOURNAL):
                return  # the writer has just ended
            raise RedxError(f"A change of {folder} was interrupted; complete it with `redx recover {run}`.")
        if time.monotonic() > deadline:
            raise RedxError(f"{run} is being changed by another process; repeat the command when it has ended.")
        time.sleep(PAUSE)


def _has_writer(run: Path) -> bool:
    """Return whether a process holds the lock of a run; the lock file is neither made nor written."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
