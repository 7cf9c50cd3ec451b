"""The engine `ray` on one machine against `local`: the same run in turn, with the ratio of their times.

    python benchmarks/ray_overhead.py mnist --seeds 3 --rounds 3

Each run starts from an empty folder and an empty cache of features. Ray is started and stopped inside the run, so its
start counts; `--standing` starts it once beforehand, as in a cluster that is there already. Figures of both engines
are compared as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import redx
from redx.engine import open_engine
from redx.io.cache import cache_folder


def main() -> None:
    """Run in turn and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="mnist")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="threads of a task; 0: as many as PyTorch uses")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="assignments")
    parser.add_argument("--standing", action="store_true", help="start Ray once, before the first run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    summaries: dict[str, dict[str, Any]] = {}
    kept = cache_folder()
    settings = [f"threads={arguments.threads}", *arguments.assignments]
    with ExitStack() as stack:
        if arguments.standing:
            stack.enter_context(open_engine("ray"))
        for _ in range(arguments.rounds):
            for engine in seconds:
                with tempfile.TemporaryDirectory() as scratch:
                    _own_cache(Path(scratch, "cache"), kept)
                    start = time.perf_counter()
                    run = redx.run(
                        arguments.task,
                        arguments.preset,
                        seeds=list(range(arguments.seeds)),
                        out=Path(scratch, "run"),
                        assignments=settings,
                        engine=engine,
                    )
                    seconds[engine].append(time.perf_counter() - start)
                    summaries[engine] = {name: value for name, value in run.summary.items() if name != "cost"}
    ratios = [ray / local for ray, local in zip(seconds["ray"], seconds["local"], strict=True)]
    result = {
        "task": arguments.task,
        "preset": arguments.preset,
        "seeds": arguments.seeds,
        "settings": settings,
        "standing": arguments.standing,
        "torch_threads": torch.get_num_threads(),
        "seconds": seconds,
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "same_figures": summaries["local"] == summaries["ray"],
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for engine, taken in seconds.items():
        print(f"{engine:6} {', '.join(f'{one:.1f}' for one in taken)} s")
    print(f"ray / local: {result['ratio']:.2f} ({result['low']:.2f} to {result['high']:.2f})")
    print(f"same figures: {result['same_figures']}")


def _own_cache(folder: Path, kept: Path) -> None:
    """Use a cache without features, which takes data and backbones from the cache of the user."""
    folder.mkdir()
    for name in ("mnist", "clinc150", "backbones"):
        if (kept / name).exists():
            (folder / name).symlink_to(kept / name)
    os.environ["REDX_CACHE"] = str(folder)


if __name__ == "__main__":
    main()
