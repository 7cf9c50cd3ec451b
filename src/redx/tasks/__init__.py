"""Tasks: one file each, found by listing this folder; a file offers its tasks in `TASKS`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redx.config import BankConfig, RunConfig
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
    study: str | None = None  # module in `redx.studies` with the task's own experiments
    text: bool = False  # whether a user's inputs are texts


def tasks() -> dict[str, Task]:
    """All tasks by name."""
    found: dict[str, Task] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").TASKS
    return found


def task(name: str) -> Task:
    """The task of this name."""
    if name not in tasks():
        raise RedxError(f"There is no task {name!r}; choose one of {', '.join(tasks())}.")
    return tasks()[name]


def preset(name: str, preset: str) -> RunConfig:
    """The settings of a task's preset."""
    found = task(name)
    if preset not in found.presets:
        raise RedxError(f"Task {name!r} has no preset {preset!r}; choose one of {', '.join(found.presets)}.")
    return found.presets[preset]


MAIN = {"residual": "owned", "standalone": "plain", "pooled": "mlp"}  # what rules without a bank mean


def square(plain: BankConfig, anchored: BankConfig, head: BankConfig) -> dict[str, BankConfig]:
    """What every report compares: residual and standalone, plain and anchored; the residual also with cut-offs."""
    return {
        "residual/plain": plain,
        "residual/anchored": anchored,
        "residual/owned": anchored.model_copy(update={"of": "residual/anchored", "owned": True}),
        "standalone/plain": head,
        "standalone/anchored": head.model_copy(update={"anchor": "truth"}),
    }
