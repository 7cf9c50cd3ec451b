"""All rows of the benchmark, and how they are run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redx.bench.timing import BenchRow, BenchSettings
from redx.errors import RedxError
from redx.io.hardware import describe_machine

GROUPS = {  # by name: the function that yields its rows
    "encode": "encoding.bench_encode",
    "compose": "composing.bench_compose",
    "train": "learning.bench_train",
    "sweep": "judging.bench_sweep",
    "calibrate": "judging.bench_calibrate",
    "certify": "judging.bench_certify",
    "estimator": "learning.bench_estimator",
    "start": "asking.bench_start",
    "answer": "asking.bench_answer",
}


def bench_rows(only: Sequence[str], settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the rows of the benchmark as they are measured.

    Parameters
    ----------
    only
        Groups of rows to measure; none for all of them. `compose` stands for all rows compose-K.
    settings
        Repetitions, sizes and backbones.

    Raises
    ------
    RedxError
        Where there is no such group, or fewer than one repetition.
    """
    if unknown := [name for name in only if name not in GROUPS]:
        raise RedxError(f"The benchmark has no row {unknown[0]!r}; choose from {', '.join(GROUPS)}.")
    if settings.repeat < 1:
        raise RedxError(f"A benchmark needs at least one repetition, not {settings.repeat}; choose --repeat 5.")
    for name in only or GROUPS:
        module, function = GROUPS[name].split(".")
        yield from getattr(importlib.import_module(f"redx.bench.{module}"), function)(settings)


def describe_bench(rows: Sequence[BenchRow]) -> dict[str, Any]:
    """Return rows as `redx bench --json` prints them, with the machine that they were measured on."""
    machine = {name: value for name, value in describe_machine().items() if name not in ("cache", "disk free")}
    return {"rows": [row.to_dict() for row in rows], "machine": machine | _processor()}


def _processor() -> dict[str, str]:
    """Return the name of the processor and the memory, where the system tells them."""
    facts = {}
    cpu, memory = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpu.exists():
        names = [
            line.partition(":")[2].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")
        ]
        facts |= {"processor": names[0]} if names else {}
    if memory.exists():
        facts["memory"] = f"{int(memory.read_text().split()[1]) / 2**20:.0f} GiB"
    return facts | {"load at the end": f"{os.getloadavg()[0]:.1f}"}
