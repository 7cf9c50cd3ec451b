"""Compare the figures of run folders that different versions of the code have written.

python benchmarks/before_after.py BEFORE AFTER…

Each argument is a folder that holds run folders by task, such as `runs/toy` and `runs/mnist`. Every run is made by
`redx run TASK --preset quick --out FOLDER/TASK` with the code of one version (`git archive COMMIT`), on the same
machine with the same number of threads. A table is printed for every task: accuracy and certified accuracy at ε = 1 of
every rule with every bank that the first folder has, how many trained tensors are the same bit for bit, and the
largest difference of any figure in `rules` of summary.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def read_rules(run: Path) -> dict[str, Any]:
    """Return the figures of every rule with its bank; rules without a bank name only where they read none."""
    rules = json.loads((run / "summary.json").read_text())["rules"]
    with_bank = {name.partition("/")[0] for name in rules if "/" in name}
    return {name: entry for name, entry in rules.items() if name not in with_bank}


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """Return all numbers inside a JSON value by their path."""
    if isinstance(value, dict):
        return {key: number for name, item in value.items() for key, number in numbers(item, f"{path}.{name}").items()}
    return {path: float(value)} if isinstance(value, int | float) else {}


def largest_difference(before: Any, after: Any) -> tuple[float, str]:
    """Return the largest difference of numbers that both values have, and the path of this number."""
    old, new = numbers(before), numbers(after)
    return max(((abs(old[key] - new[key]), key.strip(".")) for key in sorted(old.keys() & new.keys())), default=(0, ""))


def same_tensors(before: Path, after: Path) -> str:
    """Return how many tensors of base, router and experts are the same bit for bit, as `SAME of ALL`."""
    same = total = 0
    for path in sorted(before.glob("seed-*/**/*.safetensors")):
        other = after / path.relative_to(before)
        if "parts" in path.parts or "study" in path.parts or not other.is_file():
            continue
        old, new = load_file(path), load_file(other)
        total += len(old)
        same += sum(name in new and torch.equal(tensor, new[name]) for name, tensor in old.items())
    return f"{same} of {total}"


def compare(task: str, folders: list[Path]) -> None:
    """Print the table of one task."""
    runs = [folder / task for folder in folders if (folder / task / "summary.json").is_file()]
    if len(runs) < 2:
        return
    rules = [read_rules(run) for run in runs]
    names = [run.parent.name for run in runs]
    print(f"\n### {task}\n")
    print("| rule | " + " | ".join(f"{name}: accuracy | any router" for name in names) + " |")
    print("|---|" + "---:|" * (2 * len(runs)))
    for name in rules[0]:
        cells = []
        for figures in rules:
            entry = figures.get(name)
            accuracy = entry and entry["accuracy"]["mean"]
            worst = entry and entry["certified"].get("1")
            cells += ["—" if value is None else f"{value:.4f}" for value in (accuracy, worst)]
        print(f"| `{name}` | " + " | ".join(cells) + " |")
    for run, figures in zip(runs[1:], rules[1:], strict=True):
        shared = rules[0].keys() & figures.keys()
        both = [{name: entries[name] for name in shared} for entries in (rules[0], figures)]
        largest, where = largest_difference(*both)
        print(f"\n{run.parent.name}: {same_tensors(runs[0], run)} tensors are the same.")
        print(f"Largest difference of any figure: {largest:.2g} ({where}).")


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    for task in sorted({path.parent.name for folder in given for path in folder.glob("*/summary.json")}):
        compare(task, given)
