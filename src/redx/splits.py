"""Train, validation and test: by row as the papers do, or so that no question stands in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from redx.errors import RedxError
from redx.seeding import generator

if TYPE_CHECKING:
    from torch import Tensor


def split(
    keys: Sequence[str], shares: tuple[float, float, float], kind: Literal["disjoint", "random"], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of train, validation and test, sorted; rows with the same key ask the same question.

    `random` deals out rows. `disjoint` deals out distinct questions: train keeps every occurrence of its own;
    validation and test keep one of each, since a repeated question would count twice in an accuracy and its rows would
    not be exchangeable, which conformal cut-offs need.
    """
    import torch

    if kind not in ("disjoint", "random"):
        raise RedxError(f"There is no split called '{kind}'; choose disjoint or random.")
    if len(shares) != 3 or not all(0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise RedxError(
            f"The shares {shares} of train, validation and test do not sum to 1; give three from 0 to 1 that do."
        )
    rows: list[int] = torch.randperm(len(keys), generator=generator(seed, "split", "rows")).tolist()
    if kind == "random":
        groups = [[row] for row in rows]
    else:
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(keys[row], []).append(row)  # the first of a group is any of its rows
        questions = sorted(found)  # where a question goes hangs on no row
        order = torch.randperm(len(questions), generator=generator(seed, "split", "questions")).tolist()
        groups = [found[questions[index]] for index in order]
    ends = [0, round(len(groups) * shares[0]), round(len(groups) * (shares[0] + shares[1])), len(groups)]
    parts = [groups[start:end] for start, end in pairwise(ends)]
    if not all(part or not share for part, share in zip(parts, shares, strict=True)):
        what = "distinct questions" if kind == "disjoint" else "rows"
        raise RedxError(f"{len(groups)} {what} are too few for the shares {shares}; add questions or change shares.")
    train, validation, test = parts
    return (
        torch.tensor(sorted(row for group in train for row in group), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in validation), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in test), dtype=torch.long),
    )


def seen(train_keys: Sequence[str], test_keys: Sequence[str]) -> float:
    """The share of test questions that stand in train."""
    known = set(train_keys)
    return sum(key in known for key in test_keys) / max(1, len(test_keys))
