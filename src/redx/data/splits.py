"""Train, validation and test: by row as the papers do, or so that no question stands in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from redx.data.dataset import Split
from redx.errors import RedxError
from redx.seeding import generator

if TYPE_CHECKING:
    from torch import Tensor


def split_rows(
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


def share_seen(train_keys: Sequence[str], test_keys: Sequence[str]) -> float:
    """The share of test questions that stand in train."""
    known = set(train_keys)
    return sum(key in known for key in test_keys) / max(1, len(test_keys))


def split_by_domain(keys: Sequence[str], every: Split, kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of train, validation and test, 8 : 1 : 1 within every domain and, as far as there are enough, every label.

    `disjoint`: rows with the same key go together, and validation and test keep one of them, since an example that
    counts twice would not be exchangeable with the others. Every label has an example in train.
    """
    import torch

    order: list[int] = torch.randperm(len(keys), generator=generator(seed, "own", "rows")).tolist()
    groups: dict[object, list[int]] = {}
    for row in order:
        groups.setdefault(keys[row] if kind == "disjoint" else row, []).append(row)
    labels, domains = every.labels.tolist(), every.domains.tolist()
    queues: dict[int, list[list[int]]] = {}
    for group in groups.values():
        queues.setdefault(domains[group[0]], []).append(group)
    parts: tuple[list[list[int]], ...] = ([], [], [])
    for domain, queue in sorted(queues.items()):
        queue.sort(key=lambda group: labels[group[0]])  # every tenth of a sorted queue takes all labels alike
        shift = int(torch.randint(10, (1,), generator=generator(seed, "own", "shift", domain)))
        turns = [(at + shift) % 10 for at in range(len(queue))]
        if len(queue) < 10:  # too few for a turn each: test comes first
            turns = [9, *([8] if len(queue) > 7 else []), *[0] * len(queue)][: len(queue)]
            mixed = torch.randperm(len(queue), generator=generator(seed, "own", "few", domain)).tolist()
            turns = [turns[at] for at in mixed]
        for group, turn in zip(queue, turns, strict=True):
            parts[max(0, turn - 7)].append(group)
    known = {labels[group[0]] for group in parts[0]}
    for part in parts[1:]:
        for group in list(part):
            if labels[group[0]] not in known:
                known.add(labels[group[0]])
                part.remove(group)
                parts[0].append(group)
    train, validation, test = parts
    return (
        torch.tensor(sorted(row for group in train for row in group), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in validation), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in test), dtype=torch.long),
    )


def sample_per_group(cells: np.ndarray, part: float, least: int, draw: torch.Generator) -> np.ndarray:
    """Which examples belong to this part of every cell: at least so many of each, and (least 0) never all of one."""
    chosen = np.zeros(len(cells), bool)
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        count = min(max(least, round(part * len(rows))), len(rows) - 1 + least)
        chosen[rows[torch.randperm(len(rows), generator=draw).numpy()[:count]]] = True
    return chosen


def classes_are_disjoint(places: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every class belongs to one domain alone."""
    return len(set(zip(places.tolist(), labels.tolist(), strict=True))) == len(set(labels.tolist()))
