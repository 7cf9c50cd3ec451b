"""Transactions on the folder of a seed: a change happens completely or not at all, wherever it is interrupted.

    1. New files are written to a scratch folder, `.edit`; the run is as before.
    2. `.journal.json` is written atomically and lists the moves that put them in place: the commit point.
    3. The moves are made, and the journal is deleted.

A process that dies before step 2 leaves a scratch folder, which the next writer deletes: the run is as before. One that
dies after step 2 leaves a journal, which the next writer or reader completes: the run is as afterwards. Every move can
be repeated. `state.json` counts the changes, so that a reader notices a change while it reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, Field

from redx.errors import RedxError
from redx.io.files import sync_folder, write_json
from redx.io.reading import exists, read_json
from redx.io.tensor_files import is_safe_path

JOURNAL, SCRATCH, STATE, LOCK = ".journal.json", ".edit", "state.json", ".lock"
WAIT = 60.0  # seconds that a reader waits for a writer to finish its moves
RETRIES = 5  # times that a reader starts again because the run was changed meanwhile

RESTORE = "restore the run from a copy"

Value = TypeVar("Value")


class JournalFile(BaseModel):
    """The content of `.journal.json`."""

    moves: list[list[str]]


class StateFile(BaseModel):
    """The content of `state.json`."""

    version: int = Field(ge=0, le=2**53, strict=True)


class Transaction:
    """A change of a seed's folder that is being prepared.

    Parameters
    ----------
    folder
        The folder of the seed. The run must be locked by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._moves: list[list[str]] = []
        _remove(folder / SCRATCH)

    def new(self, relative: str) -> Path:
        """Return where to write the new content of a file or folder; on commit it replaces the old content."""
        self._moves.append(["replace", relative])
        return self.folder / SCRATCH / "new" / relative

    def move(self, source: str, target: str) -> None:
        """Move a file or folder on commit; the target must not exist."""
        self._moves.append(["move", source, target])

    def commit(self) -> None:
        """Make the change; afterwards the folder is as if it had been made in one step."""
        version = read_version(self.folder) + 1
        write_json(self.new(STATE), {"version": version})
        try:
            for path in [*(self.folder / SCRATCH).rglob("*"), self.folder / SCRATCH, self.folder]:
                if path.is_dir():
                    sync_folder(path)
        except OSError as error:
            raise RedxError(f"Cannot write to {self.folder} ({error.strerror}); nothing was changed.") from error
        write_json(self.folder / JOURNAL, {"moves": self._moves})
        recover(self.folder)


@contextmanager
def edit(folder: Path) -> Iterator[Transaction]:
    """Prepare a change inside the block and commit it at its end; after an error nothing has changed."""
    transaction = Transaction(folder)
    try:
        yield transaction
        transaction.commit()
    except BaseException:
        if not exists(folder / JOURNAL):
            with suppress(RedxError):  # the next writer removes what is left
                _remove(folder / SCRATCH)
        raise


def recover(folder: Path) -> None:
    """Complete the moves of a committed change, if there is one, and remove what is left of an uncommitted one."""
    journal = folder / JOURNAL
    if exists(journal):
        moves: list[list[str]] = read_json(journal, JournalFile, misfit="is damaged", advice=RESTORE).moves
        try:
            with_kind = [(_MOVES[kind], names) for kind, *names in moves]
            if not all(is_safe_path(name) for _, names in with_kind for name in names):
                raise ValueError("a path that leaves the folder")
            for move, names in with_kind:
                move(folder, *names)
            for parent in {(folder / names[-1]).parent for _, names in with_kind} | {folder}:
                sync_folder(parent)
            journal.unlink()
        except (KeyError, TypeError, ValueError) as error:
            raise RedxError(f"{journal} is damaged; {RESTORE}.") from error
        except OSError as error:
            raise RedxError(
                f"Cannot complete a change in {folder} ({error.strerror}); fix its permissions and repeat the command."
            ) from error
    _remove(folder / SCRATCH)


def _replace(folder: Path, relative: str) -> None:
    new, old, target = (folder / SCRATCH / "new" / relative, folder / SCRATCH / "old" / relative, folder / relative)
    if not os.path.lexists(new):
        return  # done before
    if target.is_dir():  # a file is replaced in one step
        old.parent.mkdir(parents=True, exist_ok=True)
        os.rename(target, old)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(new, target)


def _move(folder: Path, source: str, target: str) -> None:
    if os.path.lexists(folder / target):
        return  # done before
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder / source, folder / target)


_MOVES: dict[str, Callable[..., None]] = {"replace": _replace, "move": _move}


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise RedxError(f"Cannot delete {path} ({error.strerror}); fix its permissions.") from error


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
        _finish_change(run, folder)
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
    return not exists(folder / JOURNAL) and read_version(folder) == version


def _finish_change(run: Path, folder: Path) -> None:
    """Complete a change that a killed process had committed, or wait for the process that is making it."""
    if not exists(folder / JOURNAL):
        return
    try:
        with FileLock(run / LOCK, timeout=WAIT):
            recover(folder)
    except Timeout as error:
        raise RedxError(f"{run} is being changed by another process; repeat the command when it has ended.") from error
    except OSError as error:
        raise RedxError(
            f"A change of {folder} has to be completed, but it cannot be written to ({error.strerror}); "
            "repeat the command where it can be."
        ) from error
