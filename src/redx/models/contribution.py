"""What the statistics of one owner do to the base: the base with and without them, on held-out examples.

An owner whose statistics are wrong makes answers wrong that are right without it. Where the owner is of no consequence,
an example on which the two bases differ in being right is as likely to be helped as harmed, so the number of harmed
ones is binomial, and an exact test says whether there are too many. Examples that fall to a class which only this owner
brings cannot be helped by it, since no held-out example has this class; a share of them is tolerated instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL = 0.01  # how often an owner that does no harm is found harmful, at most
TAKEN = 0.05  # share of the examples that may fall to the new classes of an owner


@dataclass(frozen=True)
class Contribution:
    """What one owner's statistics do to the base.

    Attributes
    ----------
    examples
        The number of held-out examples.
    without, within
        The accuracy of the base without this owner, and with it.
    helped, harmed
        Examples that only the base with this owner answers correctly, and those that only the base without it does.
    taken
        Harmed examples that are answered with a class which only this owner brings.
    p
        The probability of so many harmed examples where the owner does no harm.
    """

    examples: int
    without: float
    within: float
    helped: int
    harmed: int
    taken: int
    p: float

    @property
    def is_harmful(self) -> bool:
        """Whether the owner makes the base worse, and not by chance."""
        return self.p < LEVEL

    def __str__(self) -> str:
        return (
            f"of {self.examples} held-out examples {self.harmed} are wrong with it and right without it, and "
            f"{self.helped} the other way round (accuracy {self.without:.4f} → {self.within:.4f}, p = {self.p:.2g})"
        )


def measure_contribution(within: Tensor, without: Tensor, labels: Tensor, new: Sequence[int] = ()) -> Contribution:
    """Return what an owner does to the base.

    Parameters
    ----------
    within, without
        The answers of the base with this owner and without it, (N,).
    labels
        The right answers, (N,).
    new
        The classes that only this owner brings.

    Examples
    --------
    >>> right, wrong = torch.zeros(20), torch.ones(20)
    >>> measure_contribution(wrong, right, labels=torch.zeros(20)).is_harmful
    True
    """
    from scipy.stats import binom

    was, now = without == labels, within == labels
    helped, harmed = int((now & ~was).sum()), int((was & ~now).sum())
    taken = int((was & ~now & torch.isin(within, torch.tensor(list(new), dtype=within.dtype))).sum())
    p = float(binom.sf(harmed - taken - 1, helped + harmed - taken, 0.5))
    if len(new):
        p = min(1.0, 2 * min(p, float(binom.sf(taken - 1, len(labels), TAKEN))))  # two tests
    shares = [float(right.double().mean()) if len(right) else 0.0 for right in (was, now)]
    return Contribution(len(labels), shares[0], shares[1], helped, harmed, taken, p)
