"""The order of the stages of a run: which wait for others, and which can run at the same time."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redx.composition.summary import Row
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.engine import Call, LocalEngine, Plan
from redx.io.files import write_json
from redx.io.reading import exists
from redx.models.encoder import build_encoder
from redx.runs.folder import SeedFolder
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
    prepare,
    read_texts,
    run_stage,
)
from redx.tasks import extension_of

log = logging.getLogger("redx")


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
        if build_encoder(task.config).reads_text:
            yield from _stages(SeedFolder(task.folder), encoding=[_call(task, read_texts, data)])


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
    stages = SeedFolder(folder)
    call = functools.partial(_call, task)
    if not exists(folder / "model.json"):  # a retrained router may know other experts
        write_json(folder / "model.json", dataclasses.asdict(task.info))
    yield from _stages(stages, base=[call(make_base, data)])
    yield from _stages(stages, shared=[call(make_shared, data)])
    yield from _stages(stages, features=[call(make_features, data)])
    if "parts" in stages.done:
        if not are_complete(folder.parent, task.seed):
            yield [call(make_parts, data)]
        return stages.done
    (prepared,) = yield [call(prepare, keep=True)]
    trained = {"experts": [call(make_experts, prepared, group) for group in task.groups()]}
    if config.of_form("pooled"):
        trained["pooled"] = [call(make_pooled, prepared)]
    if config.router.is_trained:
        trained["router"] = [call(make_router, prepared)]
    if extension := extension_of(config):
        trained[extension.NAME] = [call(make_extension)]
    yield from _stages(stages, **trained)
    if config.integrate:
        yield from _stages(stages, integration=[call(make_integration, prepared)])
    yield from _stages(stages, parts=[call(make_parts, data)])
    return stages.done


def _ignore(seconds: float) -> None:
    pass


def _call(
    task: SeedTask,
    function: Callable[..., Any],
    *arguments: Any,
    keep: bool = False,
    finished: Callable[[float], None] = _ignore,
) -> Call:
    return Call(run_stage, (task, function, *arguments), keep, task.config.device == "cuda", finished)


def _stages(stages: SeedFolder, **calls_of_stages: list[Call]) -> Plan[None]:
    """Make the calls of stages that are not done and do not depend on each other; record each when it is done."""
    ready = []
    for name, calls in calls_of_stages.items():
        (task, *_) = calls[0].arguments
        extension = extension_of(task.config)
        writes = name in FILES or (extension is not None and name == extension.NAME)
        if stages.is_done(name, task.file(name) if writes else None):
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
