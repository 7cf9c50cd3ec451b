"""Break every command at every point, and send it signals at random moments; print a table.

`python -m faults [VERB…] [MODE…] [STEP]`, with `tests` on the path: `signal` is a mode like those of the injection, and
with a step only every STEP-th point is tried.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import torch

from faults.checks import break_at, make_reference
from faults.injection import MODES
from faults.signals import SIGNALS, signal_at_random
from faults.worlds import Worlds
from helpers.adapters import run_tiny_adapters

MOMENTS = 7  # random moments of each verb and signal


def main(names: list[str], modes: list[str], step: int) -> int:
    """Break commands, print a table, and return the number of bad points."""
    torch.set_num_threads(1)
    rows, total = [], 0
    with tempfile.TemporaryDirectory(prefix="redx-faults-") as folder:
        worlds = Worlds(Path(folder) / "worlds", run_tiny_adapters(Path(folder) / "adapters"))
        for verb in worlds.verbs().values():
            if names and verb.name not in names:
                continue
            began, bad = time.monotonic(), 0
            reference = make_reference(worlds, verb)
            points, injected = range(0, len(reference.operations), step), [mode for mode in modes if mode in MODES]
            tried = len(points) * len(injected)
            for seed, number in product(range(MOMENTS), SIGNALS) if "signal" in modes else ():
                tried += 1
                if problems := signal_at_random(worlds, verb.name, number, seed):
                    bad += 1
                    print(f"BAD {verb.name}, {number.name}, seed {seed}", flush=True)
                    print(*(f"    {problem}" for problem in problems), sep="\n", flush=True)
            for at in points:
                for mode in injected:
                    if problems := break_at(worlds, verb, reference, at, mode):
                        bad += 1
                        print(f"BAD {verb.name}, {mode} before {at}: {reference.operations[at]}", flush=True)
                        print(*(f"    {problem}" for problem in problems), sep="\n", flush=True)
            total += bad
            rows.append([verb.name, str(len(reference.operations)), str(tried), str(bad)])
            print(f"{verb.name}: {rows[-1][1:]}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{'verb':<18}{'operations':>12}{'tried':>8}{'bad':>6}")
    for row in rows:
        print(f"{row[0]:<18}{row[1]:>12}{row[2]:>8}{row[3]:>6}")
    return total


if __name__ == "__main__":
    known = [*MODES, "signal"]
    chosen = [word for word in sys.argv[1:] if word not in known and not word.isdigit()]
    wanted = [word for word in sys.argv[1:] if word in known] or known
    steps = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1]
    sys.exit(min(main(chosen, wanted, steps[0]), 100))
