"""A run from data to report: its stages on an engine, then evaluation, study, summary and report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redx.composition.risk import supported_risk
from redx.composition.summary import SCHEMA
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.engine import Engine, open_engine
from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.files import write_bytes, write_json
from redx.io.manifest import read_manifest
from redx.model.model import Model
from redx.models.calibration import read_calibration
from redx.models.encoder import build_encoder
from redx.report.content import Study
from redx.report.notebook import run_html
from redx.report.page import check_packages
from redx.runs.conclusion import SeedResults, describe_figures, format_rows, states
from redx.runs.costs import describe_cost
from redx.runs.facts import describe_experts
from redx.runs.folder import add_seeds, load, load_seed, lock_run
from redx.runs.given import keep_examples, task_of_data
from redx.runs.integrity import STATES, state_hash
from redx.runs.parts import count_groups, read_parts
from redx.runs.plans import own_stages, plan_evaluation, plan_reading, plan_seed
from redx.runs.presets import configure
from redx.runs.reports import new_report, read_study, write_report
from redx.runs.stages import SPLITS, SeedTask
from redx.runs.tracking import check_tracker
from redx.runs.transaction import edit
from redx.tasks import Task, get_task, use_task
from redx.training.datasets import split_validation

log = logging.getLogger("redx")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    folder
        The run folder.
    summary
        The content of summary.json.
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def report(self) -> Path:
        """The report's page."""
        return self.folder / "report.html"

    def _repr_html_(self) -> str:
        """Return the main figures as a table, for notebooks."""
        return run_html(self.summary, str(self.folder), self.report.as_posix())

    def load(self, seed: int | None = None) -> Model:
        """Return the composed model of one seed, the first by default."""
        return load(self.folder, seed)


def run(
    task: str | Task | None = None,
    preset: str = "default",
    seeds: Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    assignments: Sequence[str] = (),
    track: str | None = None,
    engine: str = "local",
    address: str | None = None,
    data: Any = None,
    **changes: Any,
) -> Run:
    """Run a task from data to report; an interrupted run continues with the same call and gives the same numbers.

    Parameters
    ----------
    task
        Name of a task, of which `redx list` shows all, or a task of your own; only what is registered by a plugin
        (`redx.plugins`) is known by its name in other processes. Without one, `data` are run: by `jsonl`, or for
        an .npz file by `features`.
    preset
        Named settings of the task.
    seeds
        One independent repetition each. Seeds of a folder add up: the summary covers those that it holds already.
    out
        The run folder; `runs/TASK` by default.
    assignments
        Settings by their dotted names, such as `base.trunk.depth=3`.
    track
        `tensorboard`: write training curves into the folder `track` of the run, which changes no figure.
    engine
        `local` does the work in this process, `ray` in the workers of a Ray cluster; the numbers are the same.
    address
        Address of a Ray cluster: `auto` or HOST:PORT; without one, Ray is started on this machine.
    data
        Your examples: a path as on the command line, a pandas DataFrame, a dataset of Hugging Face or its three splits,
        a mapping of columns, or a list of records. What is in memory is written to a JSONL file beside the run folder,
        with the columns that are read, so that the run can be repeated.
    **changes
        Options as on the command line (`text`, `label`, `domain`, …; they name columns, or are lists with a value for
        each example), and settings that differ from the preset, as
        `redx.runs.presets.configure` takes them.

    Returns
    -------
    Run
        The folder and the summary.

    Examples
    --------
    >>> import redx
    >>> finished = redx.run("toy", preset="quick")  # doctest: +SKIP
    >>> finished.summary["rules"]["red"]["accuracy"]["mean"]  # doctest: +SKIP
    1.0

    A DataFrame with the columns `text`, `label` and `unit`:

    >>> finished = redx.run(data=df, text="text", label="label", domain="unit")  # doctest: +SKIP
    >>> finished.load().predict(df)  # doctest: +SKIP
    """
    check_packages()
    check_tracker(track)
    name = use_task(task_of_data(data, changes) if task is None else task).name
    folder = Path(out or Path("runs") / name)
    changes = keep_examples(name, folder, data, changes)
    if engine != "local" and not isinstance(task, str):
        raise RedxError(f"Workers of {engine} know tasks by name; bring '{name}' in a plugin and give its name.")
    config = configure(name, preset, assignments, seeds=seeds, **changes)
    with open_engine(engine, address, config.device == "cuda") as opened:
        return run_all([(config, folder)], opened, track)[0]


def run_all(cells: Sequence[tuple[RunConfig, Path]], engine: Engine, track: str | None = None) -> list[Run]:
    """Make several runs, the work of all of them at the same time where the engine can.

    Parameters
    ----------
    cells
        The settings of each run, all with the same number of threads, and its folder; finished seeds that the folder
        holds already count too.
    engine
        Where the work is done.
    track
        What records the training curves, as `run` takes it.

    Returns
    -------
    list of Run
        The finished runs.
    """
    start = time.perf_counter()
    cells = [(add_seeds(folder, config), folder) for config, folder in cells]
    loaded = [{seed: get_task(config.task).load(config, seed) for seed in config.seeds} for config, _ in cells]
    for (config, _), data in zip(cells, loaded, strict=True):
        _check_run(config, data)
    with contextlib.ExitStack() as stack:
        for config, folder in cells:
            stack.enter_context(lock_run(folder, config))
        stack.enter_context(_use_threads(cells[0][0].threads))
        _check_folders(cells, engine)
        tasks = [
            (SeedTask.create(config, data[seed], seed, folder / f"seed-{seed}", track), engine.share(data[seed]))
            for (config, folder), data in zip(cells, loaded, strict=True)
            for seed in config.seeds
        ]
        engine.follow([plan_reading(tasks)])
        seconds = engine.follow([plan_seed(*task) for task in tasks])
        runs = []
        for (config, folder), data in zip(cells, loaded, strict=True):
            own, seconds = seconds[: len(config.seeds)], seconds[len(config.seeds) :]
            by_seed = dict(zip(config.seeds, own, strict=True))
            runs.append(_conclude(config, folder, data, by_seed, start, engine))
        return runs


def _check_run(config: RunConfig, data: dict[int, Data]) -> None:
    """Refuse, before anything is written, what the backbone or the data do not support: statistics, or a risk."""
    if config.statistics.use and (own_stages(config) or not all(splits.classes for splits in data.values())):
        raise RedxError(
            f"Task '{config.task}' has no classes, so owners' statistics give no base; leave out statistics.use."
        )
    if stages := own_stages(config):
        return stages.check_run(config, data)
    if config.controlled_bank and config.by == "domain" and not all(map(_has_domains, data.values())):
        raise RedxError(
            f"Domains of task '{config.task}' share classes, so the risk cannot be kept in each of them; leave out by, "
            "or choose all."
        )
    build_encoder(config)
    if config.controlled_bank:
        for seed in config.seeds:
            _, calibration = split_validation(data[seed], config.ownership.calibration, seed)
            supported_risk(config.risk, len(calibration), config.confidence, warn=False)


def _has_domains(data: Data) -> bool:
    """Return whether every class belongs to one domain, so that the risk can be kept in each of them."""
    return min(data.domain_of_classes(), default=-1) >= 0


def _check_folders(cells: Sequence[tuple[RunConfig, Path]], engine: Engine) -> None:
    """Refuse a run folder, and a cache of texts, that the workers of the engine cannot see."""
    folders = [folder for _, folder in cells]
    if any(own_stages(config) or build_encoder(config).reads_text for config, _ in cells):
        folders.append(cache_folder())
    engine.check_folders(folders)


@contextlib.contextmanager
def _use_threads(count: int) -> Iterator[None]:
    """Use this many torch threads inside the block; 0 leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _conclude(
    config: RunConfig,
    folder: Path,
    data: dict[int, Data],
    stage_seconds: dict[int, dict[str, float]],
    start: float,
    engine: Engine,
) -> Run:
    """Turn the parts of every seed into results, study, summary and report."""
    first = data[config.seeds[0]]
    began = time.perf_counter()
    by_seed = engine.follow([plan_evaluation(config, folder, seed) for seed in config.seeds])
    results = {
        seed: SeedResults(read_parts(folder, seed), rows, read_calibration(folder / f"seed-{seed}"))
        for seed, rows in zip(config.seeds, by_seed, strict=True)
    }
    evaluated = time.perf_counter()
    study = _study(config, folder, data, results)
    seconds = {
        stage: sum(times.get(stage, 0.0) for times in stage_seconds.values())
        for stage in stage_seconds[config.seeds[0]]
    }
    seconds |= {"evaluation": evaluated - began, "study": time.perf_counter() - evaluated}
    hashes = {seed: {name: getattr(data[seed], name).digest() for name in SPLITS} for seed in data}
    groups = count_groups(results[config.seeds[0]].parts.banks)
    unit = "groups" if groups else "examples"
    described = _describe(config, folder, first)
    folders = {seed: folder / f"seed-{seed}" for seed in config.seeds}
    summary = {
        "schema": SCHEMA,
        "task": config.task,
        "preset": config.preset,
        "seeds": list(config.seeds),
        "backbone": config.backbone,
        "interval": "95 %, Student's t over seeds" if len(results) > 1 else f"95 %, Wilson over test {unit}",
        "data": {
            **{name: len(getattr(first, name)) for name in SPLITS},
            "split": first.split,
            "seen_in_train": first.seen_in_train,
            **groups,
        },
        "domains": list(first.domains),
        **describe_figures(config, results, [hashes[seed]["test"] for seed in config.seeds]),
        **described,
        STATES: {str(seed): state_hash(one, read_manifest(one) or {}) for seed, one in folders.items()},
        "study": study.facts if study else {},
        "cost": {
            "seconds": {**seconds, "total": sum(seconds.values())},
            "wall_seconds": time.perf_counter() - start,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            **described["cost"],
        },
    }
    with edit(folder) as transaction:
        write_json(transaction.new("data.json"), {"split": first.split, "sha256": hashes})
        write_bytes(transaction.new("results.jsonl"), format_rows(results))
        write_json(transaction.new("summary.json"), summary)
        write_report(new_report(transaction.new), config, summary, study)
    log.info("finished in %.1f s", time.perf_counter() - start)
    return Run(folder, summary)


def _describe(config: RunConfig, folder: Path, data: Data) -> dict[str, Any]:
    """Return the sections of the summary that describe the model of the first seed: `experts`, `cost`, others."""
    if stages := own_stages(config):
        return stages.describe_run(config, folder, data)
    model = load_seed(folder / f"seed-{config.seeds[0]}", config)
    return {"experts": describe_experts(model), "cost": describe_cost(config, folder, data, model)}


def _study(config: RunConfig, folder: Path, data: dict[int, Data], results: dict[int, SeedResults]) -> Study | None:
    """Return the task's own experiments; they run once for these experts and are read from disk afterwards."""
    module = get_task(config.task).study
    if module is None or config.study == "none":
        return None
    study = read_study(folder)
    if study is None or study.state != states(results):
        models = {seed: load(folder, seed) for seed in config.seeds}
        banks = {seed: one.parts.banks for seed, one in results.items()}
        compute = importlib.import_module(module).study if isinstance(module, str) else module
        study = dataclasses.replace(compute(config, data, models, banks), state=states(results))
        with edit(folder) as transaction:
            write_json(transaction.new("study.json"), dataclasses.asdict(study))
    return study
