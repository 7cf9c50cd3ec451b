"""Measure all rows of `redx bench` and write docs/results/bench.json, speed.md and speed.svg.

python benchmarks/speed.py                                   measure everything, then write the page
python benchmarks/speed.py --from docs/results/bench.json    write the page from earlier measurements
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from redx.bench.page import BenchFile, draw_ratios, make_page
from redx.bench.rows import bench_rows, describe_bench
from redx.bench.timing import BenchSettings
from redx.io.files import write_bytes, write_json
from redx.io.reading import read_json

RESULTS = Path(__file__).parents[1] / "docs" / "results"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.source is None:
        rows = []
        for row in bench_rows((), BenchSettings(repeat=chosen.repeat)):
            print(f"{row.name}: {row.ratio:.3g} ({row.low:.3g}-{row.high:.3g})", file=sys.stderr, flush=True)
            rows.append(row)
        write_json(RESULTS / "bench.json", describe_bench(rows))
    bench = read_json(chosen.source or RESULTS / "bench.json", BenchFile)
    write_bytes(RESULTS / "speed.md", make_page(bench).encode())
    draw_ratios(bench, RESULTS / "speed.svg")
