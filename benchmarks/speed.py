"""Measure all rows of `redx bench` and write docs/results/bench.json, speed.md and speed.svg.

python benchmarks/speed.py                                   measure everything, then write the page
python benchmarks/speed.py --only train --only sweep         measure some groups, keep the others as they are
python benchmarks/speed.py --from docs/results/bench.json    write the page from earlier measurements
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from redx.bench.page import BenchFile, draw_ratios, make_page
from redx.bench.rows import GROUPS, bench_rows, describe_bench
from redx.bench.timing import BenchSettings
from redx.io.files import write_bytes, write_json
from redx.io.reading import read_json

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def merge(name: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows of one group into bench.json, in place of its earlier rows; other groups stay."""
    path = RESULTS / "bench.json"
    measured = describe_bench([])
    kept = [row for row in read_json(path, dict)["rows"] if group_of(row["name"]) != name]
    every = sorted([*kept, *rows], key=lambda row: list(GROUPS).index(group_of(row["name"])))
    write_json(path, measured | {"rows": every})


def group_of(row: str) -> str:
    """Return the group that a row belongs to."""
    return next(group for group in GROUPS if row == group or row.startswith(f"{group}-"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--only", action="append", choices=list(GROUPS))
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    for group in [] if chosen.source else chosen.only or GROUPS:
        rows = []
        for row in bench_rows((group,), BenchSettings(repeat=chosen.repeat)):
            print(f"{row.name}: {row.ratio:.3g} ({row.low:.3g}-{row.high:.3g})", file=sys.stderr, flush=True)
            rows.append(row.to_dict())
        merge(group, rows)
    bench = read_json(chosen.source or RESULTS / "bench.json", BenchFile)
    write_bytes(RESULTS / "speed.md", make_page(bench).encode())
    draw_ratios(bench, RESULTS / "speed.svg")
