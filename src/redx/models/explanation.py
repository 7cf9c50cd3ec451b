"""How a model came to one answer, as a record of plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Explanation:
    """How a model came to one answer.

    Attributes
    ----------
    answer
        The predicted label, or the number of a regression.
    range
        The domain that this answer belongs to, where it belongs to one alone.
    expert
        The expert with the largest weight; None where there are no experts.
    base
        What the base alone answers.
    weights
        The weight of every expert.
    contributions
        What every expert adds to the score of the answer.
    radius
        ε*, the share of routing weight that an adversary may move without changing the answer.
    """

    answer: Any
    range: str | None
    expert: str | None
    base: Any
    weights: dict[str, float]
    contributions: dict[str, float]
    radius: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)
