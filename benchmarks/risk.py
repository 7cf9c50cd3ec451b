"""Risk control at scale: how long a calibration takes, and what the worst router costs as the experts become many.

python benchmarks/risk.py calibrate                     100 experts on 3,000 examples, with 2, 10 and 150 classes
python benchmarks/risk.py experts --data-dir FOLDER     CLINC150 with 5, 10, 50 and 150 experts, one seed each
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import redx
from redx.composition.parts import Parts
from redx.data.text import unpack_texts
from redx.models.calibration import calibrate
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task

REPEATS = 5
COUNTS = (5, 10, 50, 150)


def time_calibration(experts: int = 100, examples: int = 3_000) -> None:
    """Print the median time of a calibration: thresholds for both regions, and both cut-offs."""
    draw = generator(0, "benchmark")
    for classes in (2, 10, 150):
        labels = torch.randint(classes, (examples,), generator=draw)
        parts = Parts(
            torch.randn(examples, classes, generator=draw) + 4 * torch.nn.functional.one_hot(labels, classes),
            torch.randn(examples, experts, classes, generator=draw) * 0.3,
            torch.zeros(examples, experts),
            labels,
            labels % experts,
            torch.randn(examples, experts, generator=draw),
        )
        seconds = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            _ = calibrate(parts, 0.01).cutoffs
            seconds.append(time.perf_counter() - start)
        median = sorted(seconds)[REPEATS // 2]
        print(f"{experts} experts, {examples} examples, {classes} classes: {1000 * median:.0f} ms", flush=True)


def count_experts(data_dir: Path) -> None:
    """Print the price of the worst router for several numbers of experts; intents are grouped in their order."""
    data = get_task("intents").load(configure("intents", data_dir=str(data_dir)), 0)
    of_domain = sorted(range(len(data.classes)), key=lambda label: (data.domain_of_classes()[label], label))
    with tempfile.TemporaryDirectory() as scratch:
        for count in COUNTS:
            group = {label: place * count // len(of_domain) for place, label in enumerate(of_domain)}
            file = Path(scratch) / f"{count}.jsonl"
            with file.open("w") as lines:
                for name in ("train", "validation", "test"):
                    split = getattr(data, name)
                    for text, label in zip(unpack_texts(split.inputs), split.labels.tolist(), strict=True):
                        row = {"text": text, "label": data.classes[label], "group": f"g{group[label]}", "split": name}
                        lines.write(json.dumps(row) + "\n")
            settings = ['ownership.score="classes"', 'noise=["swap"]', "levels=[1.0]", "epsilons=[1.0]", "threads=1"]
            changes: dict[str, Any] = {
                "file": str(file),
                "domain": "group",
                "split_column": "split",
                "study": "none",
                "run": "red",
            }
            run = redx.run("jsonl", out=Path(scratch) / f"run-{count}", assignments=settings, **changes)
            base, red, free = (run.summary["rules"][name] for name in ("base", "red", "red/anchored"))
            price = base["accuracy"]["mean"] - red["certified"]["1"]
            uncut = base["accuracy"]["mean"] - free["certified"]["1"]
            print(
                f"{count} experts: base {base['accuracy']['mean']:.4f}, red {red['accuracy']['mean']:.4f}, price "
                f"{price:.4f} (risk {red['risk']['alpha']:g}, harm {red['risk']['harm']['mean']:.4f}); without a "
                f"cut-off {free['accuracy']['mean']:.4f}, price {uncut:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("calibrate", "experts"))
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    time_calibration() if chosen.part == "calibrate" else count_experts(chosen.data_dir)
