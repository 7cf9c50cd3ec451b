"""Small worlds that commands change: a folder with a finished run, experts, a checkpoint and a cache."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import faults.injection as injection
import redx
from helpers.own_data import draw_clouds, write_arrays
from redx.adapters.composed import ComposedLM
from redx.adapters.library import library_folder, read_library
from redx.io.reading import exists, read_json
from redx.io.signing import make_key
from redx.runs.folder import ask_model
from redx.runs.parts import StoredParts, read_parts

LEFTOVERS = re.compile(r"\.redx-edit|\.journal\.json|\..+\.(tmp|unfinished)")
# times are in them, or hashes of such files
VOLATILE = ("run.log", "manifest.json", "stages.json", "state.json", "summary.json", "report.html", "report.md")
FEW = ["--set", 'noise=["swap"]', "--set", "levels=[1.0]", "--set", "epsilons=[1.0]"]
EPOCHS = ["--max-epochs-base", "2", "--max-epochs-experts", "1", "--max-epochs-router", "1"]
FEATURES = re.compile(r"[0-9a-f]{32}\.(npy|sums\.json)")  # in the cache, whether a command fails or not
State = dict[str, str]  # hash of each file, by path


@dataclass(frozen=True)
class Verb:
    """A command that writes.

    Attributes
    ----------
    name
        The command.
    words
        Its words; the working directory is the world.
    whole
        Whether the command happens completely or not at all; otherwise this holds for each of its files.
    repeats
        Whether it can be repeated after it has succeeded, with the same result.
    removes
        What is deleted from the world before.
    changes_run
        Whether it changes a finished run.
    steps
        Files that it writes more than once, so that they may be neither as before nor as after.
    """

    name: str
    words: list[str]
    whole: bool = True
    repeats: bool = True
    removes: tuple[str, ...] = field(default=())
    changes_run: bool = False
    steps: tuple[str, ...] = ()


class Worlds:
    """A template that is made once, and copies of it for single commands.

    Parameters
    ----------
    folder
        An empty folder.
    adapters
        A finished run of adapters, which is copied.
    """

    def __init__(self, folder: Path, adapters: Path) -> None:
        self.folder, self.template = folder, folder / "template"
        settings = read_json(adapters / "config.json", dict)
        self.adapters = adapters
        self.adapter_words = ["run", "adapters", "--preset", "tiny", "--train", "--backbone", settings["backbone"]]
        self.adapter_words += ["--data", settings["table"]["file"], "--out", "lm"]
        folder.mkdir(exist_ok=True)
        self.data = write_arrays(folder / "clouds.npz", **draw_clouds(80))
        own = draw_clouds(24, seed=1)
        self.own = write_arrays(folder / "own.npz", x=own["x"], y=own["y"])
        self.key = folder / "me.key"
        make_key(self.key)
        self.run_words = ["run", "features", "--preset", "quick", "--data", str(self.data), "--out", "run"]
        self.run_words += ["--run", "red", "--study", "none", *EPOCHS, *FEW]
        self.run_words += ["--set", "statistics.size=20"]
        self._make_template()

    def _make_template(self) -> None:
        self.template.mkdir(parents=True)
        with self.inside(self.template):
            for words in (
                self.run_words,
                ["experts", "train", "run", "--domain", "new", "--data", str(self.own), "--out", "new"],
                ["export", "run", "--out", "full.safetensors"],
            ):
                code, out = ask(words)
                assert code == 0, out
            shutil.copytree(self.adapters, "lm")
            assert ask(["adapters", "save", "lm", "saved"])[0] == 0
            shutil.copytree("run", "fewer")
            assert ask(["experts", "remove", "fewer", "1"])[0] == 0
            for kind in ("features/model", "embeddings"):
                for name in ("a.npy", "b.npy"):
                    path = Path("cache", kind, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(b"content of " + name.encode())
            _make_fake_mnist(Path("mnist"))

    @contextlib.contextmanager
    def inside(self, world: Path) -> Iterator[None]:
        """Work inside a world, with its own cache."""
        before, cache = os.getcwd(), os.environ.get("REDX_CACHE")
        os.chdir(world)
        os.environ["REDX_CACHE"] = "cache"
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.pop("REDX_CACHE")
            if cache is not None:
                os.environ["REDX_CACHE"] = cache

    def verbs(self) -> dict[str, Verb]:
        """Return the commands that write, by name."""
        router = ["router", "train", "fewer"]
        train = ["experts", "train", "run", "--domain", "other", "--data", str(self.own), "--out", "other"]
        adapter = "lm/seed-0/adapters/lower"
        verbs = [
            Verb("run", self.run_words, whole=False, removes=("run",)),
            Verb("run again", [*self.run_words, "--seed", "0", "--seed", "1"], whole=False),
            Verb("experts add", ["experts", "add", "fewer", "fewer/seed-0/removed/1"], repeats=False, changes_run=True),
            Verb("experts remove", ["experts", "remove", "run", "1"], repeats=False, changes_run=True),
            Verb("experts replace", ["experts", "replace", "run", "1", "new"], repeats=False, changes_run=True),
            Verb("experts train", train, whole=False, repeats=False),
            Verb("router train", router, changes_run=True),
            Verb("calibrate", ["calibrate", "run", "--risk", "0.3"], changes_run=True),
            Verb("run adapters", self.adapter_words, whole=False, removes=("lm",), steps=("lm/seed-0/library.json",)),
            Verb("adapters calibrate", ["calibrate", "lm", "--risk", "0.3"], changes_run=True),
            Verb(
                "adapters add", ["adapters", "add", "saved", adapter, "--name", "more"], repeats=False, changes_run=True
            ),
            Verb("adapters remove", ["adapters", "remove", "saved", "lower"], repeats=False, changes_run=True),
            Verb("adapters save", ["adapters", "save", "lm", "again"], repeats=False),
            Verb("experts kit", ["experts", "kit", "run", "--out", "kit.zip"], repeats=False),
            Verb("sign", ["sign", "run", "--key", str(self.key)]),
            Verb("export", ["export", "run", "--out", "new.safetensors"]),
            Verb("shrink", ["shrink", "full.safetensors", "--trainable-last-n-layers", "0", "--out", "s.safetensors"]),
            Verb("report", ["report", "run"], whole=False, removes=("run/report.html", "run/report.md", "run/figures")),
            Verb("data", ["data", "addition", "--out", "questions.jsonl", "--total", "20"]),
            Verb("cache clear", ["cache", "clear"], whole=False),
            Verb("fetch mnist", ["fetch", "mnist", "--data-dir", "mnist"], whole=False),
        ]
        return {verb.name: verb for verb in verbs}

    def copy(self, verb: Verb, name: str = "world") -> Path:
        """Return a fresh copy of the template for a command."""
        world = self.folder / name
        shutil.rmtree(world, ignore_errors=True)
        shutil.copytree(self.template, world)
        for relative in verb.removes:
            path = world / relative
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return world


def ask(words: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = injection.run_command(words)
    return code, printed.getvalue()


def state_of(world: Path) -> State:
    """Return the hash of every file of a world, without hidden files and those that hold times."""
    state = {}
    for path in sorted(world.rglob("*")):
        relative = path.relative_to(world).as_posix()
        hidden = any(part.startswith(".") for part in relative.split("/"))
        if path.is_file() and not hidden and path.name not in VOLATILE and not FEATURES.fullmatch(path.name):
            state[relative] = hashlib.sha256(_content(path)).hexdigest()
    return state


def _content(path: Path) -> bytes:
    """Return what a file holds; figures, which some processes do not draw, and the order of metadata do not count."""
    content = path.read_bytes()
    if path.suffix == ".svg" and content.rstrip().endswith((b"</svg>", b"<svg/>")):
        return b"a whole figure"
    if path.suffix != ".safetensors" or len(content) < 8:
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    try:
        return json.dumps(json.loads(content[8:end]), sort_keys=True).encode() + content[end:]
    except ValueError:  # truncated
        return content


def answers_of(run: Path) -> dict[str, Any]:
    """Return what readers of a run get: predictions, experts and parts; or the sentence of an error."""
    if exists(run / "library.json") or exists(run / "seed-0" / "library.json"):
        return _answers_of_adapters(run)
    draws = torch.tensor(draw_clouds(16, seed=2)["x"]).float()
    readers: dict[str, Callable[[], Any]] = {
        "predict": lambda: redx.load(run).predict(draws),
        "list": lambda: ask_model(run, None, lambda model: [expert.info for expert in model.experts]),
        "parts": lambda: _describe_parts(read_parts(run, 0)),
    }
    return _ask_all(readers)


def _answers_of_adapters(run: Path) -> dict[str, Any]:
    """Return what readers of a run of adapters, or of a saved model of some, get."""
    readers: dict[str, Callable[[], Any]] = {
        "scores": lambda: ComposedLM.from_pretrained(run).scores("abc").tolist(),
        "list": lambda: read_library(library_folder(run)).names,
    }
    if exists(run / "config.json"):
        readers["parts"] = lambda: _describe_parts(read_parts(run, 0))
    return _ask_all(readers)


def _ask_all(readers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            answers[name] = read()
        except redx.RedxError as error:
            answers[name] = f"refused: {error}"
    return answers


def _describe_parts(stored: StoredParts) -> dict[str, Any]:
    """Return the domains, and for every bank the accuracy of the base and the shape and sum of what it adds."""
    facts: dict[str, Any] = {"domains": stored.domains}
    for bank_id, parts in stored.banks.items():
        sums = [float(tensor.double().sum()) for tensor in parts.tensors().values()]
        facts[str(bank_id)] = [list(parts.residuals.shape), *sums]
    return facts


def leftovers(world: Path) -> list[str]:
    """Return unfinished files that a world holds."""
    return [str(path.relative_to(world)) for path in world.rglob("*") if LEFTOVERS.fullmatch(path.name)]


def _make_fake_mnist(folder: Path) -> None:
    """Write the small files that stand for MNIST, compressed."""
    folder.mkdir()
    for name, content in injection.fake_mnist().items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
