"""What engines work on: plans, which yield calls that may run at the same time; and the local engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


def _ignore(seconds: float) -> None:
    pass


@dataclass(frozen=True)
class Call:
    """A function call that an engine makes, here or in another process.

    Attributes
    ----------
    function
        A function of a module, so that a worker can import it.
    arguments
        Its arguments. Large ones are handles: what `Engine.share` returned, or the result of a call with `keep`.
    keep
        The plan receives a handle instead of the result, which stays where it was computed.
    cuda
        The call computes on a CUDA device.
    finished
        Is called with the seconds that the function took, in the process of the plan and before the plan goes on.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keep: bool = False
    cuda: bool = False
    finished: Callable[[float], None] = _ignore


Plan = Generator[Sequence[Call], list[Any], Result]
"""Yields calls that do not depend on each other, receives their results in order, and returns a result at its end."""


class Engine(Protocol):
    """Follows plans to their ends.

    A function gives the same bits under every engine: calls do not depend on where other calls run, and every process
    uses the same number of threads.

    Attributes
    ----------
    runs_at_once
        Number of runs of a sweep that are worth following at the same time.
    """

    runs_at_once: int

    def share(self, value: Any) -> Any:
        """Return a handle to a large value that several calls take as an argument."""
        ...

    def follow(self, plans: Iterable[Plan[Any]]) -> list[Any]:
        """Return the results of plans, in their order; the calls of different plans may run at the same time."""
        ...

    def check_folders(self, folders: Iterable[Path]) -> None:
        """Raise `RedxError` if a worker cannot see one of these folders."""
        ...


@dataclass(frozen=True)
class Report:
    """What a worker reports of a call besides its result: its seconds, and what it logged."""

    seconds: float
    messages: tuple[str, ...]


class _Collector(logging.Handler):
    """Keeps messages, to be logged by the process that asked for the call."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def perform_elsewhere(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Report]:
    """Call a function in a worker process, where nobody reads the log; return its result and a report."""
    log, collector = logging.getLogger("redx"), _Collector()
    log.addHandler(collector)
    log.setLevel(logging.INFO)
    start = time.perf_counter()
    try:
        result = function(*arguments)
    finally:
        log.removeHandler(collector)
    return result, Report(time.perf_counter() - start, tuple(collector.messages))


# --- the local engine


class LocalEngine:
    """Follows plans one after the other; a handle is the value itself."""

    runs_at_once = 1

    def share(self, value: Any) -> Any:
        return value

    def follow(self, plans: Iterable[Plan[Any]]) -> list[Any]:
        return [_follow(plan) for plan in plans]

    def check_folders(self, folders: Iterable[Path]) -> None:
        pass


def _follow(plan: Plan[Any]) -> Any:
    try:
        calls = next(plan)
        while True:
            calls = plan.send([_perform(call) for call in calls])
    except StopIteration as stop:
        return stop.value
    finally:
        plan.close()


def _perform(call: Call) -> Any:
    start = time.perf_counter()
    result = call.function(*call.arguments)
    call.finished(time.perf_counter() - start)
    return result
