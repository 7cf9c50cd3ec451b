"""Exact bounds of shares and an exact test of two runs, as pure functions of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from scipy import stats

from redx.composition.metrics import upper_bound as upper_bound  # used with the lower bound


def lower_bound(successes: int, examples: int, confidence: float) -> float:
    """Return the exact (Clopper-Pearson) lower confidence bound of a share.

    Parameters
    ----------
    successes, examples
        How many of how many examples.
    confidence
        Probability with which the true share is at least the bound, whatever it is.

    Examples
    --------
    >>> round(lower_bound(95, 100, 0.95), 4), round(lower_bound(100, 100, 0.95), 4)
    (0.8977, 0.9705)
    """
    return 0.0 if successes <= 0 else float(stats.beta.ppf(1 - confidence, successes, examples - successes + 1))


def mean_count(counts: Sequence[tuple[int, int]], up: bool = False) -> tuple[float, int, int]:
    """Return the mean share over seeds, and the whole count of the examples of one seed that stands for it.

    Test examples repeat over seeds, so they count once: a bound uses the number of test examples of one seed, and the
    mean share as a whole count, rounded to the side on which the bound stays valid.

    Parameters
    ----------
    counts
        Successes and examples of every seed.
    up
        Whether to round up, for an upper bound, instead of down.

    Returns
    -------
    tuple of float, int and int
        The mean share, the count, and the number of examples (of the smallest seed).

    Examples
    --------
    >>> mean_count([(7, 10), (8, 10)])
    (0.75, 7, 10)
    """
    mean = sum(Fraction(successes, examples) for successes, examples in counts) / len(counts)
    examples = min(examples for _, examples in counts)
    return float(mean), (math.ceil if up else math.floor)(mean * examples), examples


def worse_p_value(gained: int, lost: int) -> float:
    """Return the p-value of the one-sided exact McNemar test that losses are no more likely than gains.

    Parameters
    ----------
    gained, lost
        Examples on which only the new run is right, and on which only the old one is.

    Examples
    --------
    >>> worse_p_value(gained=0, lost=5), worse_p_value(gained=0, lost=0)
    (0.03125, 1.0)
    """
    total = gained + lost
    return float(stats.binomtest(lost, total, 0.5, alternative="greater").pvalue) if total else 1.0
