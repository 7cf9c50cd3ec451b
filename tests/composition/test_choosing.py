"""Choosing by what calibration says breaks the promise of risk control; choosing on other examples keeps it."""

from __future__ import annotations

import torch
from torch import Tensor

from redx.seeding import generator

RISK, EXAMPLES, CANDIDATES, DRAWS = 0.05, 150, 56, 400


def thresholds(count: int, draw: torch.Generator) -> Tensor:
    """Return the cut-off below which each example is harmed, for candidates that are all equally good, (N, J)."""
    return torch.rand(count, CANDIDATES, generator=draw)


def lowest_cutoff(held: Tensor) -> Tensor:
    """Return the smallest cut-off of each candidate with (harmed + 1) / (n + 1) at most the risk, (N, J) to (J,)."""
    allowed = int(RISK * (len(held) + 1)) - 1  # examples that may be harmed
    return held.sort(0, descending=True).values[allowed]


def mean_harm(choose_on_calibration: bool) -> float:
    """Return the mean harm of fresh examples when the candidate with the lowest cut-off is kept."""
    draw, harm = generator(0, "choosing"), 0.0
    for _ in range(DRAWS):
        calibration, choice = thresholds(EXAMPLES, draw), thresholds(EXAMPLES, draw)
        cutoffs = lowest_cutoff(calibration)
        kept = int((cutoffs if choose_on_calibration else lowest_cutoff(choice)).argmin())
        harm += float(1 - cutoffs[kept])  # a fresh threshold is uniform
    return harm / DRAWS


def test_choosing_by_calibration_breaks_the_promise() -> None:
    assert mean_harm(choose_on_calibration=True) > 1.4 * RISK


def test_choosing_on_choice_examples_keeps_the_promise() -> None:
    assert mean_harm(choose_on_calibration=False) <= RISK
