"""Feeds mutated files to every reader of redx: each is accepted or refused in one sentence, and nothing else happens.

PYTHONPATH=tests python -m faults.fuzz --cases 200000 --seconds 3600
PYTHONPATH=tests python -m faults.fuzz --only 17 --seed 0     (one case again, with its traceback)
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from faults.mutations import mutate_bytes
from faults.targets import Material, Target, make_material, make_targets
from helpers.adapters import run_tiny_adapters
from helpers.tampering import resealed, unverified
from redx.errors import RedxError

MEMORY = 2 * 2**20  # KiB that a case may add to the memory of this process
SECONDS = 30  # of the processor that a case may take
WAITING = 600  # seconds that it may take altogether, on a machine that does other work too
OUTCOMES = ("accepted", "refused", "failed")


class Hang(BaseException):
    """A case takes far too long; no reader may catch it."""


@dataclass
class Count:
    """How many cases were accepted, refused with one sentence, or failed."""

    accepted: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    by_target: Counter[tuple[str, str]] = field(default_factory=Counter)  # target, and what happened

    def __str__(self) -> str:
        total = self.accepted + self.refused + len(self.failures)
        return f"{total} cases: {self.accepted} accepted, {self.refused} refused, {len(self.failures)} failures"

    def table(self) -> str:
        """Return what happened, with a line for every file."""
        rows = [
            (name, *(self.by_target[name, what] for what in OUTCOMES)) for name in {name for name, _ in self.by_target}
        ]
        lines = [("file", *OUTCOMES), *sorted(rows)]
        return "\n".join(f"{line[0]:<22}" + "".join(f"{figure:>10}" for figure in line[1:]) for line in lines)


def run_case(number: int, seed: int, targets: list[Target], count: Count, debug: bool = False) -> None:
    """Mutate one file, read it, count what happens, and put the file back."""
    draw = Random(f"{seed}/{number}")
    target = draw.choices(targets, [target.weight for target in targets])[0]
    original = target.path.read_bytes() if target.path else b""
    mutated = draw.choice([*target.mutations, mutate_bytes])(original, draw) if target.path else b""
    before, failed, accepted = _peak_memory(), len(count.failures), count.accepted
    try:
        if target.path:
            target.path.write_bytes(mutated)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAITING)
        with behind_manifest(target.manifest, draw):
            target.read(draw)
        count.accepted += 1
    except RedxError as error:
        count.refused += 1
        one_line = "\n" not in str(error) or target.path is None  # a name may have two lines
        if not one_line or not str(error).endswith("."):
            count.failures.append(f"{_name(number, seed, target)}: no single sentence: {str(error)[:300]!r}")
    except (Exception, Hang) as error:
        if debug:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        location = f"{Path(where.filename).name}:{where.lineno}"
        count.failures.append(
            f"{_name(number, seed, target)}: {type(error).__name__} at {location}: {str(error)[:200]}"
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if target.path:
            target.path.write_bytes(original)
    if (grown := _peak_memory() - before) > MEMORY:
        count.failures.append(f"{_name(number, seed, target)}: {grown // 1024} MB of memory")
    what = "failed" if len(count.failures) > failed else "accepted" if count.accepted > accepted else "refused"
    count.by_target[target.name, what] += 1


@contextmanager
def behind_manifest(folder: Path | None, draw: Random) -> Iterator[None]:
    """Leave the manifest that lists a mutated file as it is, recompute it, or let all manifests count as empty.

    With the first the file is refused before its parser sees it; with the second what the files of a run say of one
    another is compared; with the third nothing stands before the parser.
    """
    way = draw.random()
    if folder is None or way < 0.15:
        yield
    elif way < 0.4:
        with resealed(folder):
            yield
    else:
        with unverified():
            yield


def _name(number: int, seed: int, target: Target) -> str:
    return f"--only {number} --seed {seed} ({target.name})"  # with the same --target


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_cases(
    cases: range,
    seed: int,
    folder: Path,
    adapters: Path,
    seconds: float = float("inf"),
    report_every: float = 0,
    debug: bool = False,
    only: str = "",
) -> Count:
    """Run cases on a run that is made once in a folder; stop after so many seconds.

    Parameters
    ----------
    cases
        Numbers of the cases; number and seed decide the file and its mutation.
    seed
        Seed of all cases.
    folder
        An empty folder.
    adapters
        A finished run of adapters; its files are changed and put back.
    seconds
        Time after which no further case is started.
    report_every
        Seconds between two lines of progress; 0 for none.
    debug
        Whether tracebacks of failures are printed.
    only
        Choose only files whose names contain this.
    """
    warnings.simplefilter("ignore")
    logging.getLogger("redx").setLevel(logging.CRITICAL)
    material: Material = make_material(folder, adapters)
    targets = [target for target in make_targets(material) if only in target.name]
    count = Count()

    def stop(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {SECONDS} s of the processor, or {WAITING} s altogether")

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)
    start = last = time.monotonic()
    for number in cases:
        run_case(number, seed, targets, count, debug)
        now = time.monotonic()
        if report_every and now - last > report_every:
            last = now
            print(f"{count}, {now - start:.0f} s", file=sys.stderr, flush=True)
        if now - start > seconds:
            break
    return count


def main() -> None:
    """Run the fuzzer from the command line; exit with code 1 if there are failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of a single case")
    parser.add_argument("--target", default="", help="mutate only files whose names contain this")
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="redx-fuzz-"))
    os.environ["REDX_CACHE"] = str(folder / "cache")
    adapters = Path(tempfile.mkdtemp(prefix="redx-fuzz-"))
    cases = range(words.cases) if words.only is None else range(words.only, words.only + 1)
    try:
        run = run_tiny_adapters(adapters / "made")
        count = run_cases(cases, words.seed, folder, run, words.seconds, 10, words.only is not None, words.target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(adapters, ignore_errors=True)
    print("\n".join(count.failures[:50]))
    print(count.table())
    print(count)
    sys.exit(bool(count.failures))


if __name__ == "__main__":
    main()
