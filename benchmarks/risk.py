"""Risk control at scale: how long a calibration takes, and what the worst router costs as the experts become many.

python benchmarks/risk.py calibrate                     100 experts on 3,000 examples, with 2, 10 and 150 classes
python benchmarks/risk.py experts --data-dir FOLDER     CLINC150 with 5, 10, 50 and 150 experts, one seed each,
                                                        and the mean harm over 200 divisions of calibration and test
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
from redx.composition.risk import RiskControl, harm_thresholds
from redx.composition.rules import get_rule
from redx.config import BankId
from redx.data.text import unpack_texts
from redx.runs.parts import read_parts
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task
from redx.tasks.studies.risk import DIVISIONS, mean_harm

REPEATS = 5
COUNTS = (5, 10, 50, 150)


def time_calibration(experts: int = 100, examples: int = 3_000) -> None:
    """Print the median processor time of a calibration: thresholds for both regions, and both cut-offs."""
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
            start = time.process_time()
            _ = RiskControl(0.01).calibrate(parts).cutoffs
            seconds.append(time.process_time() - start)
        median = sorted(seconds)[REPEATS // 2]
        print(
            f"{experts} experts, {examples} examples, {classes} classes: {1000 * median:.0f} ms of processor time",
            flush=True,
        )


def red_risk(run: redx.Run) -> float:
    """Return the risk that `red` keeps in a run."""
    return run.summary["rules"]["red"]["risk"]["risk"]


def count_experts(data_dir: Path) -> None:
    """Print the price of the worst router for several numbers of experts; intents are grouped in their order."""
    data = get_task("intents").load(configure("intents", data_dir=str(data_dir)), 0)
    of_domain = sorted(range(len(data.classes)), key=lambda label: (data.domain_of_classes()[label], label))
    columns = (
        "experts",
        "base",
        "red",
        "any router",
        "pooled",
        "price",
        "harm",
        f"mean harm, {DIVISIONS} divisions",
        "no cut-off",
        "its price",
    )
    print(f"| {' | '.join(columns)} |\n|{'---:|' * len(columns)}", flush=True)
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
            settings = ['ownership.kind="classes"', 'noise=["swap"]', "levels=[1.0]", "epsilons=[1.0]", "threads=1"]
            changes: dict[str, Any] = {
                "file": str(file),
                "domain": "group",
                "split_column": "split",
                "study": "none",
                "run": "red",
            }
            run = redx.run("jsonl", out=Path(scratch) / f"run-{count}", assignments=settings, **changes)
            calibrated = run.load().current_control().thresholds["simplex"]
            parts = read_parts(run.folder, 0).banks[BankId("residual", "risk")]
            harm = mean_harm(calibrated, harm_thresholds(get_rule("red"), parts), red_risk(run))
            rules = run.summary["rules"]
            base, red, free = (rules[name] for name in ("base", "red", "red/anchored"))
            alone = base["accuracy"]["mean"]
            figures = (
                alone,
                red["accuracy"]["mean"],
                red["certified"]["1"],
                max(rules[name]["accuracy"]["mean"] for name in rules if name.startswith("global")),
                alone - red["certified"]["1"],
                red["risk"]["harm"]["mean"],
                harm,
                free["accuracy"]["mean"],
                alone - free["certified"]["1"],
            )
            print(f"| {count} | " + " | ".join(f"{figure:.4f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("calibrate", "experts"))
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    time_calibration() if chosen.part == "calibrate" else count_experts(chosen.data_dir)
