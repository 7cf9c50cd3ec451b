"""The run folder: atomic files, one writer at a time, and stages that are done once.

RUN/config.json  data.json  results.jsonl  summary.json  study.json  report.html  report.md  figures/  run.log
RUN/seed-N/model.json  base.safetensors  router.safetensors  experts/NAME/{expert.safetensors, expert.json}
RUN/seed-N/pooled.safetensors  parts/FORM-BANK.safetensors  stages.json
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from redx.composition.parts import Parts
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io import files
from redx.io.files import read_json, read_tensors, write_json
from redx.models import encoder
from redx.models.base import Base
from redx.models.composed import Model
from redx.models.persistence import (
    _read_fixed_banks,
    read_figures,
    read_info,
    read_library,
    read_router,
)
from redx.tasks import get_task
from redx.tasks.arithmetic.decomposers import Decomposer, restore_decomposer
from redx.tasks.arithmetic.solver import Executor, Solver

log = logging.getLogger("redx")


def read_config(folder: Path) -> RunConfig:
    """The settings of a run folder."""
    try:
        return RunConfig.model_validate(read_json(folder / "config.json"))
    except ValidationError as error:
        raise RedxError(
            f"{folder / 'config.json'} does not hold the settings of a run; delete the folder and repeat the run."
        ) from error


def read_parts(folder: Path, seed: int) -> dict[tuple[str, str], Parts]:
    """All parts of one seed, by form and bank."""
    found = sorted((folder / f"seed-{seed}" / "parts").glob("*.safetensors"))
    if not found:
        raise RedxError(f"{folder} holds no parts of seed {seed}; finish the run with `redx run` first.")
    parts = {}
    for path in found:
        form, bank = path.stem.split("-", 1)
        try:
            parts[form, bank] = Parts(**read_tensors(path))
        except TypeError as error:
            raise RedxError(f"{path} does not hold parts; delete it and repeat the run.") from error
    return parts


class SeedFolder:
    """The part of a run folder that belongs to one seed: its stages, each computed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, float] = {}  # seconds of each finished stage
        if (folder / "stages.json").exists():
            self.done = read_json(folder / "stages.json")

    def stage(self, name: str, make: Callable[[], None]) -> None:
        """Run a stage that writes its files, unless it is done; cut short, it starts again from its seed."""
        if name in self.done:
            return
        start = time.perf_counter()
        log.info("%s: stage %s starts", self.folder.name, name)
        make()
        self.done[name] = time.perf_counter() - start
        write_json(self.folder / "stages.json", self.done)
        log.info("%s: stage %s took %.1f s", self.folder.name, name, self.done[name])


@contextlib.contextmanager
def lock_run(folder: Path, config: RunConfig) -> Iterator[None]:
    """Hold the run folder for one run: make it, lock it, check that it is ours, log to it."""
    foreign = {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.is_dir() else set()
    if foreign and "config.json" not in foreign:
        raise RedxError(f"{folder} is not empty and holds no run; choose another folder with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115 - closing it gives the lock back
    except OSError as error:
        raise RedxError(
            f"Cannot write to {folder} ({error.strerror}); choose another folder with --out or fix its permissions."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RedxError(
                f"Another run is writing to {folder}; wait for it or choose another folder with --out."
            ) from error
        for left in folder.rglob(".*.tmp"):  # what a killed run was writing
            left.unlink()
        _check_settings(folder, config)
        handler = logging.FileHandler(folder / "run.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
    """Refuse a folder that holds another run; more or fewer seeds of the same run are welcome."""
    if (folder / "config.json").exists():
        before = read_config(folder).model_dump(mode="json")
        now = config.model_dump(mode="json")
        other = [name for name in now if name != "seeds" and now[name] != before[name]]
        if "task" in other:
            raise RedxError(
                f"{folder} holds a run of '{before['task']}', not of '{now['task']}'; choose another folder with --out."
            )
        if other:
            raise RedxError(
                f"{folder} holds a run with other settings ({', '.join(other)}); "
                "choose another folder with --out, or delete it to start afresh."
            )
    write_json(folder / "config.json", config.model_dump(mode="json"))


def load_seed(folder: Path, config: RunConfig) -> Model:
    """The trained modules of one seed, as a model; experts are read when they are first asked."""
    facts = read_info(folder)
    base = Base.of(files.read_tensors(folder / "base.safetensors"), encoder.build_encoder(config))
    library = read_library(folder, config, base, facts)
    fixed, own_router = _read_fixed_banks(folder, config, base, library)
    return Model(
        facts=facts,
        config=config,
        read=get_task(config.task).read,
        base=base,
        experts=library,
        router=None if config.router.shape == "keys" else read_router(folder, config, base, facts),
        fixed=fixed,
        own_router=own_router,
        decomposer=None if config.decomposer == "none" else lambda: _load_decomposer(folder, config),
        figures=read_figures(folder.parent),
        home=folder,
    )


def _load_decomposer(folder: Path, config: RunConfig) -> Decomposer:
    tensors = files.read_tensors(folder / "decomposer.safetensors")
    return restore_decomposer(config.decomposer, tensors, config.backbone)


def solver(folder: str | os.PathLike[str], seed: int | None = None, rule: str | None = None) -> Solver:
    """What answers sentences: the decomposer and the experts of a finished run of `steps`."""
    model = load(folder, seed)
    if model.decomposer is None:
        raise RedxError(f"{folder} has no decomposer; make a run that has one with `redx run steps`.")
    return Solver(model.decomposer(), Executor(model, rule or model.rule))


def load(folder: str | os.PathLike[str], seed: int | None = None) -> Model:
    """The composed model of a finished run: of its first seed, unless told otherwise."""
    config, seed = choose_seed(Path(folder), seed)
    return load_seed(Path(folder) / f"seed-{seed}", config)


def choose_seed(folder: Path, seed: int | None) -> tuple[RunConfig, int]:
    config = read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    return config, seed
