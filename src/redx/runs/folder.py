"""The run folder: atomic files, one writer at a time, stages that are done once, and the model in it.

RUN/config.json  data.json  results.jsonl  summary.json  study.json  report.html  report.md  figures/  run.log
RUN/manifest.json  seed-N/manifest.json: the hashes of all files, written with them
RUN/seed-N/model.json  base.safetensors  router.safetensors  experts/NAME/{expert.safetensors, expert.json}
RUN/seed-N/pooled.safetensors  parts/FORM-BANK.safetensors  stages.json
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import Field

from redx.composition.summary import check_schema
from redx.config import RunConfig, StrictConfig
from redx.data.dataset import Split
from redx.errors import RedxError, printable
from redx.io.files import make_folder, write_json
from redx.io.folders import check_links
from redx.io.manifest import SEED, is_expected, require_manifest
from redx.io.reading import check_path, exists, is_file, is_folder, read_json
from redx.io.safetensors_files import read_tensors
from redx.model.model import Model, ModelExtension
from redx.model.persistence import is_saved_model, load_model
from redx.runs.integrity import check_states
from redx.runs.transaction import JOURNAL, LOCK, SCRATCH, Value, consistently, edit, recover
from redx.tasks import TASKS, Task, extension_of
from redx.training.datasets import read_feature_split, read_shared, split_validation
from redx.training.features import without_copies

log = logging.getLogger("redx")
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
# names that `atomic_path` gives to unfinished files of a run
TEMPORARY = re.compile(r"\..+\.(json|jsonl|html|md|svg|safetensors)\.[0-9a-f]{8}\.tmp")
# all that a run has made before its config.json
STARTED = re.compile(rf"\.lock|{re.escape(SCRATCH)}|\.journal\.json(\.[0-9a-f]{{8}}\.tmp)?")


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
        The model; its experts are read from disk when they are first asked. For a run of adapters it is the language
        model, `redx.adapters.composed.ComposedLM`.

    Examples
    --------
    >>> import redx
    >>> model = redx.load("runs/addition")  # doctest: +SKIP
    >>> model.predict(["What is 37 plus 12?"])  # doctest: +SKIP
    ['49']
    """
    if is_saved_model(Path(folder)):
        return Model.from_pretrained(Path(folder))
    config, seed = choose_seed(Path(folder), seed)
    if module := task_of(config).stages:
        return importlib.import_module(module).load_seed(Path(folder) / f"seed-{seed}", config)
    return load_classifier(folder, seed)


def load_classifier(folder: str | os.PathLike[str], seed: int | None = None) -> Model:
    """Return the composed model of a finished run, or refuse a run whose model is no classifier."""
    model = ask_model(folder, seed, lambda model: model)
    if model.routing_note:
        log.warning("%s", model.routing_note)
    return model


def ask_model(folder: str | os.PathLike[str], seed: int | None, ask: Callable[[Model], Value]) -> Value:
    """Return what `ask` returns for the model of a run, which is loaded anew if the run is changed meanwhile.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds; the first by default.
    ask
        Asks the model; it may be called more than once.
    """
    run = Path(folder)
    config, seed = choose_seed(run, seed)
    seed_folder = run / f"seed-{seed}"

    def read() -> Value:
        model = load_seed(seed_folder, config)
        check_states(run, model.figures)
        return ask(model)

    return consistently(run, seed_folder, read)


def solver(folder: str | os.PathLike[str], seed: int | None = None, rule: str | None = None) -> Any:
    """Return the solver of a finished run whose task brings one: for `steps`, its decomposer and its experts.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds; the first by default.
    rule
        The rule that answers single steps; the model's own by default.

    Returns
    -------
    Any
        What the task offers; for `steps` a `redx.tasks.arithmetic.solver.Solver`.

    Examples
    --------
    >>> import redx
    >>> redx.solver("runs/steps").solve(["12 plus 5 minus 3"])[0].answer  # doctest: +SKIP
    14
    """
    model = load_classifier(folder, seed)
    extension = None if model.extension is None else extension_of(read_config(Path(folder)))
    if model.extension is None or extension is None:
        raise RedxError(f"{folder} has no decomposer or other solver; make a run that has one with `redx run steps`.")
    return extension.solver(model.extension.load(), model, rule or model.rule)


def load_seed(folder: Path, config: RunConfig) -> Model:
    """Return the model in the folder of one seed."""
    if task_of(config).stages:
        raise RedxError(f"{folder.parent} is a run of '{config.task}', no classifier; {task_of(config).instead}.")
    require_manifest(folder, "stages.json")
    read, extension = task_of(config).read, None
    if own := extension_of(config):
        file = folder / f"{own.NAME}.safetensors"
        extension = ModelExtension(own.NAME, lambda: own.restore(config, read_tensors(file)))
    model = load_model(folder, config, read, extension)

    def validation(part: int) -> Split:
        every = read_feature_split(folder / "features.safetensors", "validation")
        seed = int(folder.name.removeprefix("seed-"))
        return every.only(split_validation(every, config.ownership.calibration, seed)[part])

    if is_expected(folder / "features.safetensors"):
        model.calibration_set = partial(validation, 1)
        model.use_examples(choices=partial(validation, 0))
    if is_expected(folder / "shared.safetensors"):
        model.use_examples(lambda: without_copies(config, read_shared(folder / "shared.safetensors")))
    model.route_by_keys_if_needed()
    return model


def choose_seed(folder: Path, seed: int | None) -> tuple[RunConfig, int]:
    """Return the settings of a run, and the seed that is asked for or else its first."""
    config = read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    return config, seed


def task_of(config: RunConfig) -> Task:
    """Return the task of a stored run."""
    if config.task not in TASKS:
        raise RedxError(
            f"The run is of the task '{config.task}', which is not registered here; "
            "install the package that brings it, or register it with redx.tasks.TASKS.register."
        )
    return TASKS[config.task]


def read_config(folder: Path) -> RunConfig:
    """Return the settings of a run folder, in which no link may lead elsewhere."""
    check_links(folder)
    require_manifest(folder, "summary.json")
    return read_json(
        folder / "config.json",
        RunConfig,
        misfit="does not hold the settings of a run",
        advice="repeat the run with --out ANOTHER",
    )


def finished_seeds(folder: Path) -> tuple[int, ...]:
    """Return the seeds in a run folder whose parts were computed: first those of config.json, in its order."""
    known = read_config(folder).seeds if exists(folder / "config.json") else ()
    numbers = {int(path.name.removeprefix("seed-")) for path in _seed_folders(folder)}
    seeds = [*known, *sorted(numbers - set(known))]
    return tuple(seed for seed in seeds if "parts" in SeedFolder(folder / f"seed-{seed}").done)


def add_seeds(folder: Path, config: RunConfig) -> RunConfig:
    """Return the settings of a run with the finished seeds that its folder holds already.

    Raises
    ------
    RedxError
        If the folder holds something else than this run.
    """
    check_path(folder)
    check_links(folder)
    _check_settings(folder, config)
    held = finished_seeds(folder) if is_folder(folder) else ()
    if set(held) <= set(config.seeds):
        return config
    return config.model_copy(update={"seeds": (*held, *(seed for seed in config.seeds if seed not in held))})


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
        require_manifest(folder, "stages.json")
        if exists(folder / "stages.json"):
            misfit = "does not hold the seconds of finished stages"
            self.done = read_json(folder / "stages.json", dict[str, Seconds], misfit=misfit)

    def stage(self, name: str, compute: Callable[[], None], file: Path | None = None) -> None:
        """Run a stage that writes its files, unless it is done; an interrupted stage starts again from its seed.

        Parameters
        ----------
        name
            Name of the stage.
        compute
            Computes the stage and writes its files.
        file
            The file that the stage writes; a stage whose file was deleted is not done.
        """
        if self.is_done(name, file):
            return
        start = time.perf_counter()
        log.info("%s: stage %s starts", self.folder.name, name)
        compute()
        self.record(name, time.perf_counter() - start)

    def is_done(self, name: str, file: Path | None = None) -> bool:
        """Return whether a stage is done, and the file that it writes, if it writes one, is still there."""
        return name in self.done and (file is None or file.exists())

    def record(self, name: str, seconds: float) -> None:
        """Note that a stage is done, and how long it took; its files are listed in the manifest."""
        self.done[name] = seconds
        with edit(self.folder) as transaction:
            transaction.adopt(name, f"{name}.safetensors", f"{name}.json", *(["adapters"] if name == "experts" else []))
            write_json(transaction.new("stages.json"), self.done)
        log.info("%s: stage %s took %.1f s", self.folder.name, name, seconds)


@contextlib.contextmanager
def lock_run(folder: Path, config: RunConfig) -> Iterator[None]:
    """Create a run folder, lock it for one writer, complete an interrupted change, and log to it.

    A folder that holds anything else than this run is refused before anything in it is touched.
    """
    check_path(folder)
    check_links(folder)
    _check_settings(folder, config)
    lock = FileLock(folder / LOCK, timeout=0.2)  # a reader may look for a moment whether it is locked
    try:
        make_folder(folder)
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
        if exists(folder / "config.json"):
            listed = set(finished_seeds(folder)) & set(read_config(folder).seeds)
            if listed - set(config.seeds):
                raise RedxError(f"Another run has just written to {folder}; repeat the command.")
        if _is_own(folder):
            _clean_up(folder)
        content = config.model_dump(mode="json")
        if not exists(folder / "config.json") or read_json(folder / "config.json") != content:
            with edit(folder) as transaction:
                transaction.adopt()
                write_json(transaction.new("config.json"), content)
        with _log_to(folder / "run.log"):
            yield
    finally:
        lock.release(force=True)


def recover_run(folder: Path) -> list[Path]:
    """Complete changes of a run that were interrupted, and return the folders that had one.

    Parameters
    ----------
    folder
        The run folder.
    """
    check_path(folder)
    check_links(folder)
    if not is_file(folder / "config.json") and not is_file(folder / "library.json"):
        raise RedxError(f"{folder} holds no run; give the folder of one.")
    try:
        with FileLock(folder / LOCK, timeout=0.2):
            pending = [one for one in (folder, *_seed_folders(folder)) if exists(one / JOURNAL)]
            for one in pending:
                recover(one)
    except Timeout as error:
        raise RedxError(f"Another command is writing to {folder}; wait for it.") from error
    except OSError as error:
        raise RedxError(f"Cannot write to {folder} ({error.strerror}); fix its permissions.") from error
    return pending


def _is_own(folder: Path) -> bool:
    """Return whether a folder that `_check_settings` accepted holds a run, or only what a run begins with."""
    entries = [path.name for path in folder.iterdir()]
    return "config.json" in entries or all(STARTED.fullmatch(name) for name in entries)


def _clean_up(folder: Path) -> None:
    """Complete a change that a killed process had committed, and delete files that one was writing."""
    seeds = _seed_folders(folder)
    for one in (folder, *seeds):
        recover(one)
    experts = [path for seed_folder in seeds for path in seed_folder.glob("experts/*")]
    for parent in [folder, folder / "figures", *seeds, *experts]:
        for path in [] if parent.is_symlink() else parent.glob(".*.tmp"):
            if TEMPORARY.fullmatch(path.name) and path.is_file():
                with contextlib.suppress(OSError):  # what is left over does no harm
                    path.unlink()


def _seed_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("seed-*") if SEED.fullmatch(path.name) and path.is_dir())


class PrintableFormatter(logging.Formatter):
    """Writes messages to run.log with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path)
        handler.handleError = lambda record: None  # a full disk ends the run by the files that matter
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
        with contextlib.suppress(OSError):
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
    summary = None
    with contextlib.suppress(RedxError):  # a missing or damaged summary is written anew
        summary = read_json(folder / "summary.json")
    check_schema(folder / "summary.json", summary)
