"""Run a task in child processes that are killed at random moments, then once without being killed."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import redx

SEEDS = [0, 1]


def run(folder: Path, file: str) -> None:
    epochs = {"base": 30, "experts": 20, "router": 20}
    redx.run("features", "quick", seeds=SEEDS, out=folder, file=file, study="none", epochs=epochs)


def kill_after(seconds: float, folder: Path, file: str) -> bool:
    """Run in a child process and kill it; return whether it was killed before it had finished."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            run(folder, file)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(kills: int, folder: Path, file: str) -> None:
    torch.set_num_threads(1)
    for module in ("matplotlib.figure", "jinja2", "torchmetrics.classification"):  # so that children start at once
        importlib.import_module(module)
    chance, killed = random.Random(7), 0
    while killed < kills:
        if kill_after(chance.uniform(0.05, 0.7), folder, file):
            killed += 1
        else:  # it was too late to kill: begin once more in the middle of the run
            for seed in SEEDS[1:]:
                (folder / f"seed-{seed}" / "stages.json").unlink()
    run(folder, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
