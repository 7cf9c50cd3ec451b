"""Tasks: what a task is, and the registry of all tasks; each package offers its own in `task.TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redx.config import BankConfig, BankId, RunConfig
from redx.data.dataset import Data
from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What a benchmark brings: its settings, its data, and how a user's input is read."""

    name: str
    about: str
    presets: dict[str, RunConfig]
    load: Callable[[RunConfig, int], Data]  # settings and seed to splits
    read: Callable[[Sequence[Any] | Tensor], Tensor]  # a user's inputs to what the network reads
    study: str | None = None  # module with the task's own experiments, imported when they run
    text: bool = False  # whether a user's inputs are texts
    options: tuple[str, ...] = ()  # keywords of `redx.runs.options` that it reads

    @property
    def example(self) -> str:
        """A command that runs it."""
        data = {"file": " --data FILE"} if "file" in self.options else {}
        return f"redx run {self.name}{data.get('file', '')} --seed 0 --seed 1 --seed 2"


def tasks() -> dict[str, Task]:
    """Return all tasks by name; a new task package is listed here."""
    from redx.tasks.arithmetic.task import TASKS as ARITHMETIC
    from redx.tasks.custom.task import TASKS as CUSTOM
    from redx.tasks.mnist.task import TASKS as MNIST
    from redx.tasks.toy.task import TASKS as TOY

    return {**ARITHMETIC, **MNIST, **CUSTOM, **TOY}


def get_task(name: str) -> Task:
    """The task of this name."""
    if name not in tasks():
        raise RedxError(f"There is no task {name!r}; choose one of {', '.join(tasks())}.")
    return tasks()[name]


def get_preset(name: str, preset: str) -> RunConfig:
    """The settings of a task's preset."""
    found = get_task(name)
    if preset not in found.presets:
        raise RedxError(f"Task {name!r} has no preset {preset!r}; choose one of {', '.join(found.presets)}.")
    return found.presets[preset]


MAIN_BANKS = {"residual": "owned", "standalone": "plain", "pooled": "mlp"}  # what rules without a bank mean


def compared_banks(plain: BankConfig, anchored: BankConfig, head: BankConfig) -> dict[BankId, BankConfig]:
    """What every report compares: residual and standalone, plain and anchored; the residual also with cut-offs."""
    return {
        BankId("residual", "plain"): plain,
        BankId("residual", "anchored"): anchored,
        BankId("residual", "owned"): anchored.model_copy(update={"of": BankId("residual", "anchored"), "owned": True}),
        BankId("standalone", "plain"): head,
        BankId("standalone", "anchored"): head.model_copy(update={"anchor": "truth"}),
    }
