"""Alternating measurements: times of several sides, their ratio with its spread, slopes, and peak memory."""

from __future__ import annotations

import importlib.util
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PAGE = 4096  # bytes of a page of memory in /proc/self/statm
INSTALL = "pip install 'redx[onnx]' sentence-transformers"


@dataclass(frozen=True)
class BenchSettings:
    """What the rows are measured with.

    Attributes
    ----------
    repeat
        Repetitions; every side runs once in each.
    quick
        Tiny sizes, to try the benchmark and to test it.
    backbone, composed_backbone
        Language models of the rows encode, train, start and answer, and of the rows compose-K.
    run
        Folder of a finished run that reads texts, for the rows start and answer; None: a small one is made.
    """

    repeat: int = 5
    quick: bool = False
    backbone: str = "minilm-l6"
    composed_backbone: str = "smollm2-135m"
    run: Path | None = None


@dataclass(frozen=True)
class BenchRow:
    """One row of the benchmark.

    Attributes
    ----------
    name
        Name of the row.
    ours, opponents
        Median seconds of redx and of every opponent.
    ratio, low, high
        Median, smallest and largest ratio over the repetitions.
    about
        What is measured, and what the ratio divides by what.
    details
        Further figures.
    missing
        Opponents that are not installed, with the command that installs them.
    """

    name: str
    ours: float
    opponents: dict[str, float]
    ratio: float
    low: float
    high: float
    about: str
    details: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def alternate(sides: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """Return the seconds of every side; all of them run once, unmeasured, and then in turn, so that drift is shared.

    Parameters
    ----------
    sides
        What is measured, by name.
    repeat
        Number of repetitions.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeat + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if number:  # the first repetition warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest of some ratios."""
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def compare(name: str, seconds: Mapping[str, Sequence[float]], against: str, about: str, **more: Any) -> BenchRow:
    """Return a row from the seconds of `ours` and its opponents; the ratio is that of `against` over ours."""
    opponents = {side: statistics.median(values) for side, values in seconds.items() if side != "ours"}
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds[against], strict=True)]
    return BenchRow(name, statistics.median(seconds["ours"]), opponents, **spread(ratios), about=about, **more)


def share(name: str, seconds: Mapping[str, Sequence[float]], of: str, about: str, **more: Any) -> BenchRow:
    """Return a row like `compare`; the ratio is that of ours over `of`."""
    opponents = {side: statistics.median(values) for side, values in seconds.items() if side != "ours"}
    ratios = [ours / whole for ours, whole in zip(seconds["ours"], seconds[of], strict=True)]
    return BenchRow(name, statistics.median(seconds["ours"]), opponents, **spread(ratios), about=about, **more)


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of the line through log(size) and log(seconds), by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    return statistics.linear_regression(x, y).slope


def peak_memory(run: Callable[[], object]) -> float:
    """Return how many megabytes the process grows at most while a function runs; 0 where it cannot be measured."""
    status, done, largest = Path("/proc/self/statm"), threading.Event(), [0]
    if not status.exists():
        run()
        return 0.0

    def pages() -> int:
        return int(status.read_text().split()[1])

    def watch() -> None:
        while not done.wait(0.002):
            largest[0] = max(largest[0], pages())

    before = largest[0] = pages()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return (largest[0] - before) * PAGE / 1e6


def absent(modules: Mapping[str, str]) -> dict[str, str]:
    """Return which opponents are not installed, with what to do: opponents to modules, to opponents to sentences."""
    return {
        opponent: f"missing: {module.replace('_', '-')} is not installed ({INSTALL})"
        for opponent, module in modules.items()
        if importlib.util.find_spec(module) is None
    }
