"""Tasks: what a task is, and the registry of all tasks, which others can join.

A task package of redx lists its own in `task.TASKS`; a package from outside calls `redx.tasks.TASKS.register`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from redx.config import BankConfig, BankId, RunConfig
from redx.data.dataset import Data
from redx.errors import RedxError
from redx.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from redx.model.model import Model

MAIN_BANKS = {"residual": "risk", "standalone": "plain", "pooled": "mlp"}  # the bank of a rule that names none


@dataclass(frozen=True)
class Task:
    """A benchmark: its settings, its data, and how it reads a user's inputs.

    Parameters
    ----------
    name
        Name of the task, as in `redx run NAME`.
    about
        One sentence for the list of tasks.
    presets
        Settings by name of the preset.
    load
        Takes settings and a seed to the splits.
    read
        Takes a user's inputs to the tensor that the network reads, (N, …).
    study
        `study(config, data, models, parts)`, or the name of a module that has it: it returns tables and figures of
        further experiments.
    text
        Whether a user's inputs are texts.
    options
        Options of `redx run` that it reads: keywords of `redx.runs.options`.
    extension
        The name of a module that offers what `Extension` lists: a further trained module that answers a user's inputs
        by asking the composed model.
    stages
        Name of a module with stages of its own, for models that are no classifiers: `redx.runs.plans.Stages`.
    instead
        What to use where a verb needs a classifier, for tasks with stages of their own.
    takes
        About how long a seed takes on two cores, by preset, such as `about 5 minutes`.
    downloads
        What the first run downloads, such as `90 MB`; empty for nothing.

    Examples
    --------
    A task of your own starts from the settings of another, and can be run as it is:

    >>> import redx
    >>> preset = get_preset("features", "quick").model_copy(update={"task": "mine"})
    >>> mine = Task("mine", "My own data.", {"default": preset}, load_mine, read_mine)  # doctest: +SKIP
    >>> redx.run(mine)  # doctest: +SKIP
    """

    name: str
    about: str
    presets: dict[str, RunConfig]
    load: Callable[[RunConfig, int], Data]
    read: Callable[[Sequence[Any] | Tensor], Tensor]
    study: str | Callable[..., Any] | None = None
    text: bool = False
    options: tuple[str, ...] = ()
    extension: str = ""
    stages: str = ""
    instead: str = ""
    takes: Mapping[str, str] = field(default_factory=dict)
    downloads: str = ""

    @property
    def example(self) -> str:
        """A command that runs it."""
        data = " --train" if "train" in self.options else " --data FILE" if "file" in self.options else ""
        return f"redx run {self.name}{data} --seed 0 --seed 1 --seed 2"


class Extension(Protocol):
    """What the module in `Task.extension` offers: a trained module that answers by asking the composed model.

    It is trained in a stage of its own, and kept in `NAME.safetensors` in the folder of a seed.
    """

    @property
    def NAME(self) -> str:
        """Name of the stage and of its file."""
        ...

    def is_wanted(self, config: RunConfig) -> bool:
        """Return whether a run with these settings has it."""
        ...

    def train(self, config: RunConfig, seed: int) -> dict[str, Tensor]:
        """Train it, and return its tensors by name."""
        ...

    def restore(self, config: RunConfig, tensors: dict[str, Tensor]) -> Any:
        """Return it as an object with these tensors."""
        ...

    def solver(self, module: Any, model: Model, rule: str) -> Any:
        """Return what `redx.solver` returns: the object together with the model that it asks."""
        ...

    def answer(
        self, module: Any, inputs: Sequence[Any], ask: Callable[[Sequence[Any]], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Return the description of the answer to every input, given a function that asks the composed model."""
        ...


def extension_of(config: RunConfig) -> Extension | None:
    """Return the extension of a run's task; None where the task has or is none, or the run does not want it."""
    name = TASKS[config.task].extension if config.task in TASKS else ""
    extension: Any = importlib.import_module(name) if name else None
    return extension if extension is not None and extension.is_wanted(config) else None


def _register_own() -> None:
    """Register the tasks of redx; a new task package is listed here."""
    for package in ("arithmetic", "mnist", "intents", "custom", "toy", "adapters"):
        for name, task in importlib.import_module(f"redx.tasks.{package}.task").TASKS.items():
            TASKS.register(name, task)


TASKS: Registry[Task] = Registry("task", _register_own)
_given: dict[str, Task] = {}  # tasks that were given as objects, which may be given anew


def use_task(task: str | Task) -> Task:
    """Return a task by name; one that is given as an object is registered, so that its run can be loaded by name.

    Raises
    ------
    RedxError
        Where there is no such task, or another task has the name of the object.
    """
    if isinstance(task, str):
        return TASKS[task]
    if not isinstance(task, Task):
        raise RedxError(f"{task!r:.100} is no task; give the name of one, or an object of redx.tasks.Task.")
    if task.name in _given and task.name in TASKS and TASKS[task.name] is _given[task.name]:
        TASKS.unregister(task.name)  # a notebook defines it anew
    _given[task.name] = TASKS.register(task.name, task)
    return task


def get_task(name: str) -> Task:
    """Return the task of this name.

    Parameters
    ----------
    name
        Name of the task, such as `mnist`.

    Returns
    -------
    Task
        The task.

    Raises
    ------
    RedxError
        Where there is no such task; the message lists all tasks.

    Examples
    --------
    >>> sorted(get_task("toy").presets)
    ['default', 'quick']
    """
    return TASKS[name]


def get_preset(name: str, preset: str) -> RunConfig:
    """Return the settings of a preset of a task."""
    task = get_task(name)
    if preset not in task.presets:
        near = difflib.get_close_matches(preset, task.presets, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise RedxError(f"Task {name!r} has no preset {preset!r}{hint}; choose one of {', '.join(task.presets)}.")
    return task.presets[preset]


def compared_banks(
    plain: BankConfig, anchored: BankConfig, head: BankConfig, statistics: bool = False
) -> dict[BankId, BankConfig]:
    """Return the banks that every report compares.

    These are residual and standalone experts, plain and anchored, and anchored residual experts with the cut-off of
    risk control; with statistics also the latter on the base of the shared examples alone.
    """
    controlled = {"experts_of": BankId("residual", "anchored"), "controlled": True}
    shared = {BankId("residual", "shared"): anchored.model_copy(update={**controlled, "on_shared": True})}
    return {
        BankId("residual", "plain"): plain,
        BankId("residual", "anchored"): anchored,
        BankId("residual", "risk"): anchored.model_copy(update=controlled),
        **(shared if statistics else {}),
        BankId("standalone", "plain"): head,
        BankId("standalone", "anchored"): head.model_copy(update={"anchor": "truth"}),
    }
