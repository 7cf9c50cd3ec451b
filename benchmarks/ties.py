"""How much shorter certified radii are than those of exact arithmetic, on whole numbers with many ties.

`python benchmarks/ties.py` prints, for every kind of examples, the share of radii that are too large (which must be
none), the share that are short by more than 0.001, and the largest shortfall. Scores and weights are whole numbers, so
that the exact radius can be computed in fractions. The last row is why ties are not relied on: how many shapes of a
matrix product give equal columns different sums.
"""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from itertools import product

import torch

from redx.composition.evaluation import certify
from redx.composition.parts import Parts
from redx.seeding import generator

SHORT = 1e-3


def draw(examples: int, experts: int, classes: int, largest: int, seed: int) -> tuple[Parts, torch.Tensor]:
    """Return examples with logits from -largest to largest, and one expert that has all the weight."""
    source = generator(seed, "ties", experts, classes, largest)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=source).double()

    parts = Parts(
        numbers(examples, classes), numbers(examples, experts, classes), torch.zeros(examples, experts).double()
    )
    chosen = torch.randint(experts, (examples,), generator=source)
    return parts, torch.nn.functional.one_hot(chosen, experts).double()


def exact_radius(base: list[int], residuals: list[list[int]], own: int, predicted: int) -> Fraction:
    """Return the largest share that can be moved without changing the answer, in exact arithmetic.

    It is the supremum of the safe shares: a rival that wins ties takes the answer where its margin is 0.
    """
    radius = Fraction(1)
    for rival in (rival for rival in range(len(base)) if rival != predicted):
        lead = [base[predicted] + one[predicted] - base[rival] - one[rival] for one in residuals]
        at, worst = lead[own], min(lead)
        if worst < 0 or (worst == 0 and rival < predicted):
            radius = min(radius, Fraction(at, at - worst) if at > worst else Fraction(0))
    return radius


def measure(experts: int, classes: int, largest: int, examples: int, seed: int) -> dict[str, float]:
    """Return how the radii of one kind of examples compare with the exact ones."""
    parts, weights = draw(examples, experts, classes, largest, seed)
    certified = certify("red", parts, weights)
    above, shortfalls = 0, []
    for row in range(examples):
        exact = exact_radius(
            [int(value) for value in parts.base[row]],
            [[int(value) for value in expert] for expert in parts.residuals[row]],
            int(weights[row].argmax()),
            int(certified.predicted[row]),
        )
        found = Fraction(float(certified.radius[row]))
        above += found > exact
        shortfalls.append(float(exact - found))
    short = [one for one in shortfalls if one > SHORT]
    return {
        "experts": experts,
        "classes": classes,
        "largest": largest,
        "too large": above / examples,
        "short": len(short) / examples,
        "largest shortfall": max(shortfalls),
    }


def measure_columns() -> dict[str, float]:
    """Return the share of matrix products, over many shapes, in which equal columns have different sums."""
    source, different, tried = generator(0, "columns"), 0, 0
    for dtype, experts, classes, examples in product(
        (torch.float32, torch.float64),
        (2, 3, 4, 5, 8, 10, 16, 17, 33, 64, 150),
        (2, 3, 7, 8, 17, 33, 100, 151),
        (1, 7, 64),
    ):
        column = torch.randn(examples, experts, 1, generator=source, dtype=dtype)
        weights = torch.rand(examples, 1, experts, generator=source, dtype=dtype)
        sums = torch.bmm(weights, column.expand(-1, -1, classes).contiguous())[:, 0]
        different += bool((sums != sums[:, :1]).any())
        tried += 1
    return {"products": tried, "equal columns with different sums": different / tried}


def main() -> None:
    """Print one row for every kind of examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for experts, classes, largest in [(2, 2, 1), (4, 4, 1), (4, 4, 2), (4, 10, 2), (8, 4, 2), (4, 4, 10), (4, 4, 1000)]:
        print(json.dumps(measure(experts, classes, largest, options.examples, options.seed)))
    print(json.dumps(measure_columns()))


if __name__ == "__main__":
    main()
