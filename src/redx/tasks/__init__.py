"""Tasks: what a task is, and the registry of all tasks. Every task package lists its own in `task.TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redx.config import BankConfig, BankId, RunConfig
from redx.data.dataset import Data
from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor

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
        Module whose `study(config, data, models, parts)` returns tables and figures of further experiments.
    text
        Whether a user's inputs are texts.
    options
        Options of `redx run` that it reads: keywords of `redx.runs.options`.
    """

    name: str
    about: str
    presets: dict[str, RunConfig]
    load: Callable[[RunConfig, int], Data]
    read: Callable[[Sequence[Any] | Tensor], Tensor]
    study: str | None = None
    text: bool = False
    options: tuple[str, ...] = ()

    @property
    def example(self) -> str:
        """A command that runs it."""
        data = " --data FILE" if "file" in self.options else ""
        return f"redx run {self.name}{data} --seed 0 --seed 1 --seed 2"


def tasks() -> dict[str, Task]:
    """Return all tasks by name; a new task package is listed here."""
    from redx.tasks.arithmetic.task import TASKS as ARITHMETIC
    from redx.tasks.custom.task import TASKS as CUSTOM
    from redx.tasks.intents.task import TASKS as INTENTS
    from redx.tasks.mnist.task import TASKS as MNIST
    from redx.tasks.toy.task import TASKS as TOY

    return {**ARITHMETIC, **MNIST, **INTENTS, **CUSTOM, **TOY}


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
    if name not in tasks():
        raise RedxError(f"There is no task {name!r}; choose one of {', '.join(tasks())}.")
    return tasks()[name]


def get_preset(name: str, preset: str) -> RunConfig:
    """Return the settings of a preset of a task."""
    task = get_task(name)
    if preset not in task.presets:
        raise RedxError(f"Task {name!r} has no preset {preset!r}; choose one of {', '.join(task.presets)}.")
    return task.presets[preset]


def compared_banks(plain: BankConfig, anchored: BankConfig, head: BankConfig) -> dict[BankId, BankConfig]:
    """Return the banks that every report compares.

    These are residual and standalone experts, plain and anchored, and anchored residual experts with cut-offs: those of
    risk control, and for comparison one on each expert's ownership score.
    """
    same = {"of": BankId("residual", "anchored")}
    return {
        BankId("residual", "plain"): plain,
        BankId("residual", "anchored"): anchored,
        BankId("residual", "risk"): anchored.model_copy(update={**same, "controlled": True}),
        BankId("residual", "owned"): anchored.model_copy(update={**same, "owned": True}),
        BankId("standalone", "plain"): head,
        BankId("standalone", "anchored"): head.model_copy(update={"anchor": "truth"}),
    }
