"""The run folder: atomic files, one writer at a time, and stages that are done once.

RUN/config.json  data.json  results.jsonl  summary.json  study.json  report.html  report.md  figures/  run.log
RUN/seed-N/model.json  base.safetensors  router.safetensors  experts/NAME/{expert.safetensors, expert.json}
RUN/seed-N/pooled.safetensors  parts/FORM-BANK.safetensors  stages.json
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from redx.composition.parts import Parts
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io.files import read_json, read_tensors, write_json

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


class Seed:
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
def writing(folder: Path, config: RunConfig) -> Iterator[None]:
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
        _claim(folder, config)
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


def _claim(folder: Path, config: RunConfig) -> None:
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
