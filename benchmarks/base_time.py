"""What it takes to compute the base anew when an owner comes, leaves or is replaced, on one core.

    python benchmarks/base_time.py
    python benchmarks/base_time.py --size 4096

Features, labels and examples are random, in the numbers of CLINC150. Every change is made by a pool that has solved
nothing, as in a command of its own: it reads the owners' files, sums them, and chooses penalty and temperature anew.
`add` knows the base without the new owner, and compares the two; `replace` has to solve it too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from redx.config import StatisticsConfig
from redx.data.dataset import Split
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.feature_map import FeatureMap
from redx.models.ridge_head import StatisticsPool
from redx.models.statistics import Statistics, collect
from redx.seeding import generator

WIDTH, CLASSES, OWNERS = 1152, 150, 10
OWN, SHARED, CHOICES = 1200, 3000, 1350  # examples of an owner, shared ones, and ones for choices


def main() -> None:
    """Print the seconds of processor time of every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=StatisticsConfig().size, help="random features")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is shown")
    options = parser.parse_args()
    torch.set_num_threads(1)
    weight = torch.randn(WIDTH, CLASSES, generator=generator(0, "classifier"))
    base = Base(IdentityEncoder(), weight, torch.zeros(CLASSES), torch.zeros(WIDTH), torch.ones(WIDTH))
    map = FeatureMap.create(StatisticsConfig(use=True, size=options.size), base)
    labels = [str(number) for number in range(CLASSES)]
    centres = torch.randn(CLASSES, WIDTH, generator=generator(0, "centres"))

    def draw(name: str, count: int, first: int = 0, step: int = 1) -> Split:
        purpose = generator(0, name)
        y = first + step * torch.randint((CLASSES - first + step - 1) // step, (count,), generator=purpose)
        return Split(0.3 * centres[y] + torch.randn(count, WIDTH, generator=purpose), y, torch.zeros_like(y))

    shared, choices = draw("shared", SHARED), draw("choices", CHOICES)
    print(f"{map.outputs} features, {CLASSES} classes, {OWNERS} owners, {CHOICES} choice examples, one thread")
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(OWNERS)]
        for number, folder in enumerate(folders):
            own = draw(f"owner {number}", OWN, number, OWNERS)
            statistics = collect(map, own.inputs, own.labels, labels)
            Expert({"domain": folder.name}, {"none": torch.zeros(1)}, statistics).save(folder)
        size = (folders[0] / "statistics.safetensors").stat().st_size
        print(f"statistics of one owner: {size / 1e6:.1f} MB")

        def solve(checked: bool, without: bool = False) -> None:
            experts = {folder.name: Expert.load(folder) for folder in folders}
            marks = {name: one.statistics_mark for name, one in experts.items()}
            pool = StatisticsPool(map, lambda: shared, lambda: choices)
            if checked:
                pool.check("0", _statistics(experts["0"]), labels)
            pool.held_answers(marks, _reader(experts), labels)
            if without:
                marks.pop("0")
                pool.held_answers(marks, _reader(experts), labels)

        def shared_sums() -> None:
            StatisticsPool(map, lambda: shared)._shared_statistics(labels)

        steps: dict[str, Callable[[], object]] = {
            "remove: read all, sum, solve": lambda: solve(False),
            "add: check one, read all, sum, solve": lambda: solve(True),
            "replace: the same, and once more without the owner": lambda: solve(True, True),
            "  of which: read one owner": lambda: _statistics(Expert.load(folders[0])),
            "  of which: check one owner": _statistics(Expert.load(folders[0])).check_possible,
            "  of which: sum the shared examples": shared_sums,
        }
        for name, step in steps.items():
            print(f"{name:<52} {_median(step, options.rounds):6.2f} s")


def _statistics(expert: Expert) -> Statistics:
    found = expert.statistics()
    assert found is not None
    return found


def _reader(experts: dict[str, Expert]) -> Callable[[str], Statistics]:
    return lambda name: _statistics(experts[name])


def _median(step: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of processor time, which other programs on the machine lengthen less than the clock."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return sorted(times)[rounds // 2]


if __name__ == "__main__":
    main()
