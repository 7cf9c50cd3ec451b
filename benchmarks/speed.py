"""Measure redx and its opponents in turn, and write docs/results/bench.json, speed.md and speed.svg.

python benchmarks/speed.py                                   measure everything, then write the page
python benchmarks/speed.py --only train --only sweep         measure some groups, keep the others as they are
python benchmarks/speed.py --only certify --quick            try one row with tiny sizes; prints and writes nothing
python benchmarks/speed.py --only certify --json             print the rows as JSON instead of writing them
python benchmarks/speed.py --from docs/results/bench.json    write the page from earlier measurements

Opponents are optional: pip install -e '.[onnx]' sentence-transformers
Compare ratios, not seconds: both sides of a ratio are measured within the same moments of the same machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io.files import write_bytes, write_json
from redx.io.hardware import describe_machine
from redx.io.reading import read_json
from speed_rows.page import BenchFile, draw_ratios, make_page
from speed_rows.timing import BenchRow, BenchSettings

RESULTS = Path(__file__).parents[1] / "docs" / "results"
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
    """Yield the rows of some groups as they are measured; of all groups where none is named."""
    if unknown := [name for name in only if name not in GROUPS]:
        raise RedxError(f"The benchmark has no row {unknown[0]!r}; choose from {', '.join(GROUPS)}.")
    if settings.repeat < 1:
        raise RedxError(f"A benchmark needs at least one repetition, not {settings.repeat}; choose --repeat 5.")
    for name in only or GROUPS:
        module, function = GROUPS[name].split(".")
        yield from getattr(importlib.import_module(f"speed_rows.{module}"), function)(settings)


def describe_bench(rows: Sequence[BenchRow]) -> dict[str, Any]:
    """Return rows as bench.json holds them, with the machine that they were measured on."""
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


def merge(rows: Sequence[BenchRow]) -> None:
    """Write rows into bench.json, in place of the earlier rows of their groups; other groups stay."""
    path, measured = RESULTS / "bench.json", describe_bench(rows)
    groups = {group_of(row.name) for row in rows}
    kept = [row for row in read_json(path, dict)["rows"] if group_of(row["name"]) not in groups]
    every = sorted([*kept, *measured["rows"]], key=lambda row: list(GROUPS).index(group_of(row["name"])))
    write_json(path, measured | {"rows": every})


def group_of(row: str) -> str:
    """Return the group that a row belongs to."""
    return next(group for group in GROUPS if row == group or row.startswith(f"{group}-"))


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, and print or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, help="write the page from this file, measure nothing")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="group of rows to measure, repeatable")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions; in each of them every side runs once")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try it; the figures mean little")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON, write nothing")
    parser.add_argument("--run", type=Path, help="finished run that reads texts, for start and answer")
    parser.add_argument("--backbone", default="minilm-l6", help="language model of encode, train, start and answer")
    parser.add_argument("--composed-backbone", default="smollm2-135m", help="language model of compose")
    chosen = parser.parse_args(words)
    settings = BenchSettings(chosen.repeat, chosen.quick, chosen.backbone, chosen.composed_backbone, chosen.run)
    every: list[BenchRow] = []
    for group in [] if chosen.source else chosen.only or GROUPS:
        rows = []
        for row in bench_rows((group,), settings):
            print(f"{row.name}: {row.ratio:.3g} ({row.low:.3g}-{row.high:.3g})", file=sys.stderr, flush=True)
            rows.append(row)
        if not (chosen.quick or chosen.json):
            merge(rows)
        every += rows
    if chosen.json:
        print(json.dumps(describe_bench(every), indent=2))
    elif not chosen.quick:
        bench = read_json(chosen.source or RESULTS / "bench.json", BenchFile)
        write_bytes(RESULTS / "speed.md", make_page(bench).encode())
        draw_ratios(bench, RESULTS / "speed.svg")


if __name__ == "__main__":
    try:
        main()
    except RedxError as error:
        sys.exit(f"speed: {error}")
