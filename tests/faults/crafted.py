"""Run folders as a stranger could make them: links, forged journals, pipes, devices and names that lead outside.

`python -m faults.crafted [STEP]`, with `tests` on the path, lets every verb open every folder, and counts escapes:
anything outside the run that is opened, written, moved or deleted. inotify watches the canaries outside, so that reads
are seen too, whoever makes them.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType

import torch

import redx
from faults.worlds import Worlds, ask
from helpers.adapters import run_tiny_adapters
from helpers.own_data import draw_clouds
from helpers.tampering import reseal
from redx.errors import RedxError
from redx.io.manifest import MANIFEST, format_manifest, hash_file, list_folder
from redx.serve.loaded import LoadedRun

SEED, OUTSIDE = "seed-0", "outside"
EVENTS = 0xFFF  # all events of inotify: access, change, open, close, move, creation, deletion
SECONDS = 60  # that a command may take; one that waits for a pipe would take for ever
MISSING = (  # names that some command writes, and that a finished run does not have
    ".journal.json",
    ".redx-edit",
    "redx.toml",
    "track",
    ".config.json.0123abcd.tmp",
    "seed-0/.journal.json",
    "seed-0/.edit",
    "seed-0/.state.json.0123abcd.tmp",
    "seed-0/removed",
    "seed-1",
    "library.json",
    "adapters",
    "signature.json",
)
HOSTILE = (
    "../outside/new",
    "../../outside/new",
    "/outside",
    "..",
    ".",
    "a/b",
    "-rf",
    "a\nb",
    "\x1b[31m",
    "a" * 300,
    "",
)
FUNCTIONS: dict[str, Callable[[], object]] = {
    "redx.load": lambda: redx.load("run").predict(torch.tensor(draw_clouds(8)["x"]).float()),
    "serve": lambda: LoadedRun.read(Path("run"), None),  # as far as it reads the run
}


@dataclass(frozen=True)
class Craft:
    """How one run folder is changed.

    Attributes
    ----------
    name
        What is wrong with it.
    change
        Changes a copy of a run; the second argument is the folder outside.
    """

    name: str
    change: Callable[[Path, Path], None]


def crafts(run: Path) -> list[Craft]:
    """Return all changes of a finished run."""
    paths = [path.relative_to(run).as_posix() for path in sorted(run.rglob("*"))]
    entries = [name for name in paths if ".safetensors" not in name or "seed-0/experts/1/" in name or "/parts/" in name]
    return [
        *(Craft(f"link {name}", _link(name)) for name in [*paths, *MISSING]),
        *(Craft(f"dangling link {name}", _dangle(name)) for name in [*MISSING, "run.log", ".lock", "report.html"]),
        *(Craft(f"pipe {name}", _special(name, _make_pipe)) for name in [*entries, *MISSING]),
        *(Craft(f"socket {name}", _special(name, _make_socket)) for name in entries[::5]),
        *(Craft(f"device {name}", _special(name, _make_device)) for name in entries[::5] if os.getuid() == 0),
        *(Craft(f"hard link {name}", _hard_link(name)) for name in (".lock", "run.log", "config.json", "summary.json")),
        *_journals(),
        *_names(),
        *_manifests(),
    ]


def _link(relative: str) -> Callable[[Path, Path], None]:
    """Put a link to a copy outside in the place of an entry, so that it looks as before."""

    def change(run: Path, outside: Path) -> None:
        path, target = run / relative, outside / "run" / relative
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.suffix:
                target.write_text('{"moves": [["move", "experts/1", "removed/1"]]}')
            else:
                shutil.copytree(outside / "run" / SEED, target)
        _delete(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return change


def _dangle(relative: str) -> Callable[[Path, Path], None]:
    """Put a link to nothing there, through which a writer would make a file outside."""

    def change(run: Path, outside: Path) -> None:
        _delete(run / relative)
        (run / relative).symlink_to(outside / "made")

    return change


def _special(relative: str, make: Callable[[Path], None]) -> Callable[[Path, Path], None]:
    def change(run: Path, outside: Path) -> None:
        _delete(run / relative)
        make(run / relative)

    return change


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)


def _make_device(path: Path) -> None:
    os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero


def _make_socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def _hard_link(relative: str) -> Callable[[Path, Path], None]:
    def change(run: Path, outside: Path) -> None:
        _delete(run / relative)
        os.link(outside / "run" / relative, run / relative)

    return change


def _journals() -> Iterator[Craft]:
    """Yield journals whose moves lead outside: by absolute paths, `..`, or links in any component."""
    leading = ("/OUTSIDE/canary", "../../outside/canary", "experts/../../../outside/canary", "h/canary", "h", ".lock")
    for source, target in product(leading, ("experts/x", "removed/x", *leading)):
        yield Craft(f"journal move {source} {target}", _journal([["move", source, target]]))
    for target in leading:
        yield Craft(f"journal replace {target}", _journal([["replace", target]]))
    links = (
        "experts",
        "removed",
        ".redx-edit",
        ".redx-edit/new",
        ".redx-edit/old",
        ".redx-edit/new/experts",
        "experts/x",
        "parts",
    )
    for link in links:
        moves = [["replace", "experts/x"], ["replace", "parts"], ["move", "experts/1", "removed/1"]]
        yield Craft(f"journal through the link {link}", _journal(moves, link))
    for moves in (None, [], [[]], [["delete", "model.json"]], [["move"]], [["replace", "a", "b"]], [[1, 2]], "x", {}):
        yield Craft(f"journal {moves!r}", _journal(moves))


def _journal(moves: object, link: str = "h") -> Callable[[Path, Path], None]:
    """Write a journal, with new content for what it replaces, and a link to the folder outside."""

    def change(run: Path, outside: Path) -> None:
        seed = run / SEED
        for name in ("experts/x/expert.json", "h/canary", "canary", "outside/canary"):
            path = seed / ".redx-edit" / "new" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("attack")
        _delete(seed / link)
        (seed / link).parent.mkdir(parents=True, exist_ok=True)
        (seed / link).symlink_to(outside)
        text = json.dumps({"moves": moves}).replace("/OUTSIDE", str(outside))
        (seed / ".journal.json").write_text(text)

    return change


def _names() -> Iterator[Craft]:
    """Yield names inside files that lead outside: of domains, experts, classes and files."""
    fields = {
        f"{SEED}/experts/1/expert.json": ("domain",),
        f"{SEED}/model.json": ("domains", "routed", "classes"),
        "config.json": ("file", "backbone", "task", "preset"),
    }
    for (file, keys), name in product(fields.items(), HOSTILE):
        for key in keys:
            yield Craft(f"{key} {name[:20]!r} in {file}", _rename_inside(file, key, name))


def _rename_inside(file: str, key: str, name: str) -> Callable[[Path, Path], None]:
    def change(run: Path, outside: Path) -> None:
        content = json.loads((run / file).read_text())
        value = content.get(key)
        content[key] = [name, *value[1:]] if isinstance(value, list) else name
        (run / file).write_text(json.dumps(content))
        reseal(run / SEED)  # otherwise the manifest is all that is seen
        reseal(run)

    return change


def _manifests() -> Iterator[Craft]:
    """Yield manifests and summaries that name files and seeds outside."""
    above = {"": "../", f"{SEED}/": "../../"}
    for folder, up in above.items():
        for name in (f"{up}outside/canary", "/OUTSIDE/canary", f"experts/../{up}outside/canary"):
            yield Craft(f"{name} in {folder}{MANIFEST}", _list(folder, name))
    for seed in ("0/../../outside/run/seed-0", "/../outside/run/seed-0"):
        yield Craft(f"the state of {seed} in summary.json", _state(seed))


def _list(folder: str, name: str) -> Callable[[Path, Path], None]:
    def change(run: Path, outside: Path) -> None:
        entries = list_folder(run / folder)
        entries[name.replace("/OUTSIDE", str(outside))] = hash_file(outside / "canary")
        (run / folder / MANIFEST).write_bytes(format_manifest(entries))

    return change


def _state(seed: str) -> Callable[[Path, Path], None]:
    def change(run: Path, outside: Path) -> None:
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"states": {seed: "x"}}))
        reseal(run)

    return change


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def verbs(worlds: Worlds) -> dict[str, list[str]]:
    """Return the words of every verb that opens a run, by name."""
    few = ["--rule", "red", "--noise", "swap", "--level", "1", "--epsilon", "1"]
    return {
        "experts list": ["experts", "list", "run"],
        "certify": ["certify", "run"],
        "evaluate": ["evaluate", "run", *few],
        "check": ["check", "run", "--min-accuracy", "0.1"],
        "report": ["report", "run"],
        "inspect": ["inspect", "run"],
        "export": ["export", "run", "--out", "exported.safetensors"],
        "experts diff": ["experts", "diff", "run", "--remove", "1"],
        "experts train": ["experts", "train", "run", "--domain", "o", "--data", str(worlds.own), "--out", "other"],
        "adapters list": ["adapters", "list", "run"],
        "solve": ["solve", "run", "1 plus 2"],
        "recover": ["recover", "run"],
        "verify": ["verify", "run"],
        "sign": ["sign", "run", "--key", str(worlds.key)],
        "experts kit": ["experts", "kit", "run", "--out", "kit.zip"],
        "experts remove": ["experts", "remove", "run", "1"],
        "experts replace": ["experts", "replace", "run", "1", "new"],
        "experts add": ["experts", "add", "run", "new"],
        "experts add to another": ["experts", "add", "fewer", "run/seed-0/experts/1"],
        **{name: [name] for name in FUNCTIONS},
        "router train": ["router", "train", "run"],
        "calibrate": ["calibrate", "run", "--risk", "0.3"],
        "run": [*worlds.run_words],
    }


class Canaries:
    """A folder outside of a run, whose files nobody may touch.

    Parameters
    ----------
    folder
        The folder; all that happens in it from now on is noticed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        self._descriptor = library.inotify_init1(os.O_NONBLOCK)
        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            assert library.inotify_add_watch(self._descriptor, os.fsencode(path), EVENTS) >= 0

    def touched(self) -> list[str]:
        """Return what happened since the last call."""
        found = []
        try:
            content = os.read(self._descriptor, 2**20)
        except BlockingIOError:
            return []
        while content:
            _, mask, _, length = struct.unpack_from("iIII", content)
            name = content[16 : 16 + length].rstrip(b"\0").decode(errors="replace")
            found.append(f"{name or 'folder'} ({mask:#x})")
            content = content[16 + length :]
        return found

    def close(self) -> None:
        """Watch no more."""
        os.close(self._descriptor)


class TooLong(BaseException):
    """A command waits for something that never comes."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TooLong` inside the block after some seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def copy_world(worlds: Worlds, world: Path) -> None:
    """Copy what the verbs need into an empty folder."""
    for folder in ("run", "new", "fewer"):
        shutil.copytree(worlds.template / folder, world / folder)


def open_run(words: list[str]) -> tuple[int, str]:
    """Run a command, or a function of Python, in this process; return its exit code and what it printed."""
    if words[0] not in FUNCTIONS:
        return ask(words)
    try:
        FUNCTIONS[words[0]]()
    except RedxError as error:
        return 2, str(error)
    return 0, ""


def attack(worlds: Worlds, craft: Craft, names: list[str]) -> list[str]:
    """Let some verbs open a crafted folder, each a fresh copy; return escapes, and endings without a sentence."""
    problems = []
    for name in names:
        with tempfile.TemporaryDirectory(dir=worlds.folder) as place:
            world = Path(place)
            copy_world(worlds, world)
            outside = world / OUTSIDE
            shutil.copytree(worlds.template / "run", outside / "run")
            (outside / "canary").write_text("mine")
            try:
                craft.change(world / "run", outside)
            except (FileNotFoundError, FileExistsError, NotADirectoryError):
                continue  # a run does not have such an entry
            canaries = Canaries(outside)
            with worlds.inside(world):
                try:
                    with limited(SECONDS):
                        code, out = open_run(verbs(worlds)[name])
                except TooLong:
                    code, out = -1, "it takes too long"
                except Exception as error:  # a traceback instead of a sentence
                    code, out = -1, repr(error)
            if found := canaries.touched():
                problems.append(f"{name}: ESCAPE {found[:3]}")
            if code not in (0, 1, 2) or "Traceback" in out:
                problems.append(f"{name}: exit code {code}, {out[-300:]}")
            canaries.close()
    return problems


def main(step: int) -> int:
    """Let every verb open every folder; print and return the number of escapes and tracebacks."""
    with tempfile.TemporaryDirectory(prefix="redx-crafted-") as folder:
        worlds = Worlds(Path(folder) / "worlds", run_tiny_adapters(Path(folder) / "adapters"))
        all_crafts = crafts(worlds.template / "run")[::step]
        names, bad = list(verbs(worlds)), 0
        for craft in all_crafts:
            for problem in attack(worlds, craft, names):
                bad += 1
                print(f"BAD {craft.name}: {problem}", flush=True)
        print(f"{len(all_crafts)} crafted folders, {len(names)} verbs: {bad} escapes or tracebacks", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1), 100))
