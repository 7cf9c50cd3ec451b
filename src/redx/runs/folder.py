"""The run folder: atomic files, one writer at a time, stages that are done once, and the model in it.

RUN/config.json  data.json  results.jsonl  summary.json  study.json  report.html  report.md  figures/  run.log
RUN/seed-N/model.json  base.safetensors  router.safetensors  experts/NAME/{expert.safetensors, expert.json}
RUN/seed-N/pooled.safetensors  parts/FORM-BANK.safetensors  stages.json
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import torch
from filelock import FileLock, Timeout
from pydantic import Field

from redx.composition.evaluation import Banks
from redx.composition.parts import Parts
from redx.config import BankId, RunConfig, StrictConfig
from redx.errors import RedxError
from redx.io.files import write_json, write_tensors
from redx.io.reading import check_path, exists, guarded, is_folder, read_json
from redx.io.safetensors_files import read_tensors
from redx.io.terminal import printable
from redx.models.composed import Model
from redx.models.persistence import load_model, read_domain_names
from redx.runs.transaction import LOCK, consistently, recover
from redx.tasks import get_task
from redx.tasks.arithmetic.decomposers import Decomposer, restore_decomposer
from redx.tasks.arithmetic.solver import Executor, Solver

log = logging.getLogger("redx")
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
MAX_DOMAINS = 2**20  # where nothing says how many there are
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")  # names that `atomic_path` gives to unfinished files


class DataFile(StrictConfig):
    """The content of data.json: how the data were split, and the hashes of the splits by seed."""

    split: str
    sha256: dict[str, dict[str, str]]


def load(folder: str | os.PathLike[str], seed: int | None = None) -> Model:
    """Return the composed model of a finished run, or of a folder that `save_pretrained` wrote.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds; the first by default.

    Returns
    -------
    Model
        The model; its experts are read from disk when they are first asked.

    Examples
    --------
    >>> import redx
    >>> model = redx.load("runs/addition")  # doctest: +SKIP
    >>> model.predict(["What is 37 plus 12?"])  # doctest: +SKIP
    ['49']
    """
    run = Path(folder)
    config, seed = choose_seed(run, seed)
    seed_folder = run / f"seed-{seed}"
    return consistently(run, seed_folder, lambda: load_seed(seed_folder, config))


def solver(folder: str | os.PathLike[str], seed: int | None = None, rule: str | None = None) -> Solver:
    """Return the solver of a finished run of `steps`: its decomposer and its experts.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds; the first by default.
    rule
        The rule that answers single steps; the model's own by default.

    Examples
    --------
    >>> import redx
    >>> redx.solver("runs/steps").solve(["12 plus 5 minus 3"])[0].answer  # doctest: +SKIP
    14
    """
    model = load(folder, seed)
    if model.decomposer is None:
        raise RedxError(f"{folder} has no decomposer; make a run that has one with `redx run steps`.")
    return Solver(model.decomposer(), Executor(model, rule or model.rule))


def load_seed(folder: Path, config: RunConfig) -> Model:
    """Return the model in the folder of one seed."""

    def decomposer() -> Decomposer:
        return restore_decomposer(config.decomposer, read_tensors(folder / "decomposer.safetensors"), config.backbone)

    has_decomposer = config.decomposer != "none"
    return load_model(folder, config, get_task(config.task).read, decomposer if has_decomposer else None)


def choose_seed(folder: Path, seed: int | None) -> tuple[RunConfig, int]:
    """Return the settings of a run, and the seed that is asked for or else its first."""
    config = read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    return config, seed


def read_config(folder: Path) -> RunConfig:
    """Return the settings of a run folder."""
    return read_json(
        folder / "config.json",
        RunConfig,
        misfit="does not hold the settings of a run",
        advice="delete the folder and repeat the run",
    )


def read_parts(folder: Path, seed: int) -> Banks:
    """Return the parts of every bank on the test split of one seed."""
    paths = sorted((folder / f"seed-{seed}" / "parts").glob("*.safetensors"))
    if not paths:
        raise RedxError(f"{folder} holds no parts of seed {seed}; finish the run with `redx run` first.")
    seed_folder = folder / f"seed-{seed}"
    domains = len(read_domain_names(seed_folder)) if exists(seed_folder / "model.json") else MAX_DOMAINS
    parts = {}
    for path in paths:
        tensors = read_tensors(path)
        with guarded(path, "does not hold parts", "delete it and repeat the run"):
            parts[BankId.parse(path.stem.replace("-", "/", 1))] = _check_parts(Parts(**tensors), domains)
    if len({len(record) for record in parts.values()}) > 1:
        raise RedxError(f"The parts in {paths[0].parent} are of different examples; delete them and repeat the run.")
    return parts


def _check_parts(parts: Parts, domains: int) -> Parts:
    """Return parts from a file, or raise an error where types, labels or domains cannot be those of a run."""
    outputs, indices = (parts.base, parts.residuals, parts.gates), (parts.labels, parts.domains)
    if {tensor.dtype for tensor in outputs} - {torch.float32} or {tensor.dtype for tensor in indices} - {torch.int64}:
        raise ValueError("tensors of other types")
    _, experts, classes = parts.residuals.shape
    inside = classes == 1 or bool(((parts.labels >= 0) & (parts.labels < classes)).all())
    if not len(parts) or not experts or not classes or not inside:
        raise ValueError("no examples, or labels that are no classes")
    if not bool(((parts.domains >= 0) & (parts.domains < domains)).all()):
        raise ValueError("domains that the run does not have")
    return parts


def write_parts(folder: Path, banks: Banks) -> None:
    """Write the parts of every bank into a folder."""
    for (form, name), parts in banks.items():
        write_tensors(folder / f"{form}-{name}.safetensors", vars(parts))


class SeedFolder:
    """The folder of one seed: its stages, each computed once.

    Attributes
    ----------
    done
        Seconds that each finished stage took.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, float] = {}
        if exists(folder / "stages.json"):
            misfit = "does not hold the seconds of finished stages"
            self.done = read_json(folder / "stages.json", dict[str, Seconds], misfit=misfit)

    def stage(self, name: str, compute: Callable[[], None]) -> None:
        """Run a stage that writes its files, unless it is done; an interrupted stage starts again from its seed."""
        if name in self.done:
            return
        start = time.perf_counter()
        log.info("%s: stage %s starts", self.folder.name, name)
        compute()
        self.done[name] = time.perf_counter() - start
        write_json(self.folder / "stages.json", self.done)
        log.info("%s: stage %s took %.1f s", self.folder.name, name, self.done[name])


@contextlib.contextmanager
def lock_run(folder: Path, config: RunConfig) -> Iterator[None]:
    """Create a run folder, lock it for one writer, complete an interrupted change, and log to it.

    A folder that holds anything else than this run is refused before anything in it is touched.
    """
    check_path(folder)
    _check_settings(folder, config)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RedxError(
            f"Another run is writing to {folder}; wait for it or choose another folder with --out."
        ) from error
    except OSError as error:
        raise RedxError(
            f"Cannot write to {folder} ({error.strerror}); choose another folder with --out or fix its permissions."
        ) from error
    try:
        _check_settings(folder, config)
        _clean_up(folder)
        write_json(folder / "config.json", config.model_dump(mode="json"))
        with _log_to(folder / "run.log"):
            yield
    finally:
        lock.release(force=True)


def _clean_up(folder: Path) -> None:
    """Complete a change that a killed process had committed, and delete files that one was writing."""
    for seed_folder in folder.glob("seed-*"):
        recover(seed_folder)
    own = [folder, folder / "figures", *folder.glob("seed-*"), *folder.glob("seed-*/parts")]
    for parent in [*own, *folder.glob("seed-*/experts/*")]:
        for path in parent.glob(".*.tmp"):
            if TEMPORARY.fullmatch(path.name) and path.is_file():
                path.unlink()


class PrintableFormatter(logging.Formatter):
    """Writes messages to run.log with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise RedxError(f"Cannot write {path} ({error.strerror}); move away what is there.") from error
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except BaseException as error:
        log.error("%s: %s", type(error).__name__, error)
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def _check_settings(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that holds something else than this run; more or fewer seeds of the same run are accepted."""
    if exists(folder) and not is_folder(folder):
        raise RedxError(f"{folder} is a file; choose another folder with --out.")
    if not is_folder(folder):
        return
    others = {path.name for path in folder.iterdir() if path.name[0] != "."}
    if not others:
        return
    if "config.json" not in others:
        raise RedxError(f"{folder} is not empty and holds no run; choose another folder with --out.")
    try:
        before = read_config(folder).model_dump(mode="json")
    except RedxError as error:
        raise RedxError(
            f"{folder} is not empty, and its config.json is not that of a run; choose another folder with --out."
        ) from error
    now = config.model_dump(mode="json")
    different = [name for name in now if name != "seeds" and now[name] != before[name]]
    if "task" in different:
        raise RedxError(
            f"{folder} holds a run of '{before['task']}', not of '{now['task']}'; choose another folder with --out."
        )
    if different:
        raise RedxError(
            f"{folder} holds a run with other settings ({', '.join(different)}); choose another folder with --out."
        )
