"""The order of the stages of a run: which wait for others, and which can run at the same time."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from redx.composition.summary import Row
from redx.config import SHARED_ONLY, RunConfig
from redx.data.dataset import Data
from redx.engine import Call, LocalEngine, Plan
from redx.io.files import write_json
from redx.io.reading import exists
from redx.models.encoder import build_encoder
from redx.runs.folder import SeedFolder, task_of
from redx.runs.parts import are_complete
from redx.runs.stages import (
    FILES,
    SeedTask,
    evaluate_seed,
    make_base,
    make_experts,
    make_extension,
    make_features,
    make_integration,
    make_parts,
    make_pooled,
    make_router,
    make_shared,
    make_shared_only,
    prepare,
    read_texts,
    run_stage,
)
from redx.tasks import extension_of

log = logging.getLogger("redx")


class Stages(Protocol):
    """What the module in `Task.stages` offers, for a model that is no classifier: its own stages up to the parts."""

    def check_run(self, config: RunConfig, data: dict[int, Any]) -> None:
        """Refuse, before anything is written, settings that cannot work with the data of the seeds."""
        ...

    def plan_seed(self, task: SeedTask, data: Any) -> Plan[dict[str, float]]:
        """Make everything of one seed, the parts of the test split included; return the seconds of its stages."""
        ...

    def load_seed(self, folder: Path, config: RunConfig) -> Any:
        """Return the model in the folder of one seed."""
        ...

    def expert_infos(self, folder: Path) -> list[dict[str, Any]]:
        """Return what is known of every expert in the folder of one seed, with its name as `domain`."""
        ...

    def describe_run(self, config: RunConfig, folder: Path, data: Data) -> dict[str, Any]:
        """Return sections of the summary: `experts` by name, `cost` with `parameters`, and its own."""
        ...


def own_stages(config: RunConfig) -> Stages | None:
    """Return the stages that a task brings, or None where it has the usual ones."""
    module: Any = task_of(config).stages and importlib.import_module(str(task_of(config).stages))
    return module or None


def train_seed(config: RunConfig, data: Data, seed: int, folder: Path) -> dict[str, float]:
    """Train everything of one seed here, each stage once; return the seconds that each stage took."""
    task = SeedTask.create(config, data, seed, folder)
    _, seconds = LocalEngine().follow([plan_reading([(task, data)]), plan_seed(task, data)])
    return seconds


def plan_reading(seeds: Sequence[tuple[SeedTask, Any]]) -> Plan[None]:
    """Read the texts of all seeds one after the other, since most seeds have the same texts.

    Parameters
    ----------
    seeds
        The task of each seed, with its data or a handle to them.
    """
    for task, data in seeds:
        if own_stages(task.config) is None and build_encoder(task.config).reads_text:
            yield from run_stages(SeedFolder(task.folder), encoding=[call_stage(task, read_texts, data)])


def plan_seed(task: SeedTask, data: Any) -> Plan[dict[str, float]]:
    """Train everything of one seed, each stage once; return the seconds that each stage took.

    Parameters
    ----------
    task
        The seed.
    data
        Its data, or a handle to them.
    """
    config, folder = task.config, task.folder
    if own := own_stages(config):
        return (yield from own.plan_seed(task, data))
    stages = SeedFolder(folder)
    call = functools.partial(call_stage, task)
    if not exists(folder / "model.json"):  # a retrained router may know other experts
        write_json(folder / "model.json", dataclasses.asdict(task.info))
    yield from run_stages(stages, base=[call(make_base, data)])
    yield from run_stages(stages, shared=[call(make_shared, data)])
    yield from run_stages(stages, features=[call(make_features, data)])
    if "parts" in stages.done:
        if not are_complete(folder.parent, task.seed):
            yield [call(make_parts, data)]
        return stages.done
    (prepared,) = yield [call(prepare, keep=True)]
    trained = {"experts": [call(make_experts, prepared, group) for group in task.groups()]}
    if config.shared_only and config.for_shared_only() is not None:
        trained[SHARED_ONLY.name] = [call(make_shared_only, prepared)]
    if config.of_form("pooled"):
        trained["pooled"] = [call(make_pooled, prepared)]
    if config.router.is_trained:
        trained["router"] = [call(make_router, prepared)]
    if extension := extension_of(config):
        trained[extension.NAME] = [call(make_extension)]
    yield from run_stages(stages, None, **trained)
    if config.integrate:
        yield from run_stages(stages, integration=[call(make_integration, prepared)])
    yield from run_stages(stages, parts=[call(make_parts, data)])
    return stages.done


def _ignore(seconds: float) -> None:
    pass


def call_stage(
    task: SeedTask,
    function: Callable[..., Any],
    *arguments: Any,
    keep: bool = False,
    finished: Callable[[float], None] = _ignore,
) -> Call:
    """Return the call of the function of a stage."""
    return Call(run_stage, (task, function, *arguments), keep, task.config.device == "cuda", finished)


def run_stages(
    stages: SeedFolder, files: Mapping[str, Path] | None = None, **calls_of_stages: list[Call]
) -> Plan[None]:
    """Make the calls of stages that are not done and do not depend on each other; record each when it is done.

    Parameters
    ----------
    stages
        The folder of the seed.
    files
        The file that a stage writes, by stage, where it is not `STAGE.safetensors`; without it the stage is not done.
    **calls_of_stages
        The calls of every stage.
    """
    ready = []
    for name, calls in calls_of_stages.items():
        (task, *_) = calls[0].arguments
        extension = extension_of(task.config)
        writes = name in FILES or (extension is not None and name == extension.NAME)
        usual = task.file(name) if files is None and writes else None
        if stages.is_done(name, (files or {}).get(name, usual)):
            continue
        log.info("%s: stage %s starts", stages.folder.name, name)
        record = _Recorder(stages, name, len(calls))
        ready += [dataclasses.replace(call, finished=record) for call in calls]
    if ready:
        yield ready


@dataclass
class _Recorder:
    """Records a stage when the last of its calls is done."""

    stages: SeedFolder
    name: str
    waiting: int
    seconds: float = 0.0

    def __call__(self, seconds: float) -> None:
        self.waiting, self.seconds = self.waiting - 1, self.seconds + seconds
        if not self.waiting:
            self.stages.record(self.name, self.seconds)


def plan_evaluation(config: RunConfig, folder: Path, seed: int) -> Plan[list[Row]]:
    """Evaluate all rules on the parts of one seed; return the rows of results.jsonl."""
    (rows,) = yield [Call(evaluate_seed, (config, folder.absolute(), seed))]
    return rows
