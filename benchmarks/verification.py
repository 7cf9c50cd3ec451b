"""What the manifest costs: the seconds of loading a run in a new process, with and without verification.

python benchmarks/verification.py RUN [--repeat 5]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median

LOAD = """
import sys, time
start = time.perf_counter()
from redx.io import manifest
check, measured = manifest.check_file, []
def timed(path, file):
    begin = time.perf_counter()
    check(path, file)
    measured.append(time.perf_counter() - begin)
manifest.check_file = timed
import redx
model = redx.load(sys.argv[1])
for expert in model.experts:
    expert.tensors()
print(sum(measured), time.perf_counter() - start)
"""


def main() -> None:
    """Print the share of a cold load, all experts included, that is spent on comparing files with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    shares = []
    for _ in range(given.repeat):
        words = [sys.executable, "-c", LOAD, given.run]
        verifying, total = map(float, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
        shares.append(verifying / total)
        print(f"verifying {verifying * 1000:.1f} ms of {total * 1000:.0f} ms")
    print(f"median share: {median(shares):.2%}")


if __name__ == "__main__":
    main()
