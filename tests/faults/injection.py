"""Run a command in a forked child that fails at its n-th change of a file.

An audit hook sees every change that Python makes: files that are opened for writing, renamed or deleted, and folders
that are made or removed. `os.fsync` and the writer of safetensors, which audit hooks do not see, are wrapped.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import typer

from faults.disk import Disk

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CREATING = ("open", "os.mkdir", "os.fsync", "save_file")  # what a full disk refuses
CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
# which argument of an operation is the open folder that its path is relative to
FOLDERS = {"os.rename": 2, "os.remove": 1, "os.mkdir": 2, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.chmod": 2}
CRASHED = 99  # exit code of a child that was stopped
MODES = {
    "exit": "the process is gone before the operation",
    "raise": "an exception that nothing catches is raised before the operation",
    "power": "the machine goes down: files and entries of folders that were not flushed to disk are lost",
    "torn": "the machine goes down: of the entries of folders that were not flushed, some are lost",
    "full": "from this operation on, the disk is full",
    "quota": "from this operation on, the user's share of the disk is used up",
    "readonly": "from this operation on, the disk is read-only",
}
NO_SPACE = {"full": errno.ENOSPC, "quota": errno.EDQUOT}


class Crash(BaseException):
    """Stops a command; nothing catches it."""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes
    ----------
    code, out, err
        Its exit code and what it printed.
    operations
        The changes that it made or was about to make, in order.
    """

    code: int
    out: str
    err: str
    operations: list[str]


class Faults:
    """Counts the changes below a folder, and fails at one of them.

    Parameters
    ----------
    root
        Changes outside this folder are not counted.
    at
        Number of the operation to fail at; a negative number for none.
    mode
        A key of `MODES`.
    """

    def __init__(self, root: Path, at: int, mode: str) -> None:
        self.root, self.at, self.mode = str(root), at, mode
        self.operations: list[str] = []
        self.disk = Disk(root) if mode in ("power", "torn") else None
        self.active = True

    def install(self) -> None:
        """Watch this process from now on; it cannot be undone."""
        import safetensors.torch as writer

        fsync, save_file = os.fsync, writer.serialize_file  # pyright: ignore[reportPrivateImportUsage]

        def watched_fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._before("os.fsync", path)
            fsync(descriptor)
            if self.disk is not None:
                self.disk.flush(descriptor)

        def watched_save_file(tensors: Any, filename: Any, *rest: Any, **more: Any) -> None:
            self._before("save_file", str(filename))
            save_file(tensors, filename, *rest, **more)

        os.fsync = watched_fsync
        writer.serialize_file = watched_save_file  # pyright: ignore[reportPrivateImportUsage]
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active or (event != "open" and event not in CHANGING):
            return
        if event == "open" and (isinstance(args[0], int) or not args[2] & WRITES):
            return
        path = _path_of(args, FOLDERS.get(event))
        if path.startswith(self.root):
            self._before(event, path)

    def _before(self, event: str, path: str) -> None:
        """Record an operation, and fail where it is time."""
        self.operations.append(f"{event} {path.removeprefix(self.root)}")
        number = len(self.operations) - 1
        if self.at < 0 or number < self.at:
            return
        if self.mode in NO_SPACE:
            if event in CREATING:
                self._refuse(NO_SPACE[self.mode], event)
            return
        if self.mode == "readonly":
            self._refuse(errno.EROFS, event)
        if number > self.at:
            return  # the clean-up after an exception
        if self.mode == "raise":
            raise Crash
        self.active = False
        if self.disk is not None:
            self.disk.fail(str(self.at) if self.mode == "torn" else None)
        os._exit(CRASHED)

    def _refuse(self, number: int, event: str) -> None:
        if event == "save_file":
            from safetensors import SafetensorError

            raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)}")
        raise OSError(number, os.strerror(number))


def _path_of(args: tuple[Any, ...], folder: int | None) -> str:
    """Return the path that an operation changes."""
    path = os.fsdecode(args[0])
    if folder is not None and args[folder] is not None and args[folder] >= 0 and not os.path.isabs(path):
        return os.path.join(os.readlink(f"/proc/self/fd/{args[folder]}"), path)
    return os.path.abspath(path)


def run_child(words: list[str], root: Path, at: int = -1, mode: str = "exit") -> Ended:
    """Run a command of redx in a forked child, inside a folder, with one fault.

    Parameters
    ----------
    words
        The words of the command.
    root
        The working directory, below which changes are counted.
    at
        Number of the operation to fail at; a negative number for none.
    mode
        A key of `MODES`.
    """
    beside = root.with_name(f"{root.name}.child")
    beside.mkdir(exist_ok=True)
    files = [beside / name for name in ("out", "err", "operations")]
    child = os.fork()
    if child == 0:
        _be_child(words, root, Faults(root, at, mode), files)
    _, status = os.waitpid(child, 0)
    out, err, operations = (path.read_text() for path in files)
    return Ended(os.waitstatus_to_exitcode(status), out, err, operations.splitlines())


def _be_child(words: list[str], root: Path, faults: Faults, files: list[Path]) -> None:
    code = 1
    out, err, record = (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in files)
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(root)
        faults.install()
        code = run_command(words)
    except Crash:
        code = CRASHED
    except BaseException:
        traceback.print_exc()
    finally:
        faults.active = False
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(record, "\n".join(faults.operations).encode())
        os._exit(code)


def run_command(words: list[str]) -> int:
    """Run a command of redx in this process, and return its exit code.

    Small files stand for MNIST, and figures are not drawn: drawing is slow, and touches no file. The number of threads
    stays as it is, since a forked child waits for ever for the threads of its parent.
    """
    import redx.cli
    from redx.io.download import Digest
    from redx.report import page
    from redx.tasks.mnist import download

    digests = {
        name: Digest("md5", hashlib.md5(content, usedforsecurity=False).hexdigest())
        for name, content in fake_mnist().items()
    }
    with (
        mock.patch.object(redx.cli, "app", _built_app()),
        mock.patch.object(page, "draw_figure", _draw_nothing),
        mock.patch.object(page, "draw_panel_svg", _draw_nothing),
        mock.patch.dict(download.FILES, digests),
        mock.patch.object(torch, "set_num_threads"),
    ):
        try:
            redx.cli.main(words)
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def fake_mnist() -> dict[str, bytes]:
    """Return small contents by the file names of MNIST."""
    from redx.tasks.mnist.download import FILES

    return {name: f"fake {name}".encode() * 50 for name in FILES}


@functools.cache
def _built_app() -> Any:
    """Return the command, built once, since that takes long."""
    import redx.cli

    return typer.main.get_command(redx.cli.app)


def _draw_nothing(*_: object) -> str:
    return "<svg/>"
