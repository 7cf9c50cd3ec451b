"""Divides examples into train, validation and test: row by row, or so that no question is in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from redx.data.dataset import Split
from redx.errors import RedxError
from redx.seeding import generator


def split_rows(
    keys: Sequence[str], shares: tuple[float, float, float], kind: Literal["disjoint", "random"], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of train, validation and test.

    Parameters
    ----------
    keys
        One key per row; rows with the same key ask the same question.
    shares
        Shares of train, validation and test, which sum to 1.
    kind
        `random` divides the rows. `disjoint` divides the distinct questions: train keeps every row of its questions,
        validation and test keep one row of theirs. A repeated question would count twice in an accuracy, and its rows
        would not be exchangeable, which conformal cut-offs require.
    seed
        Seed of the random division.

    Returns
    -------
    tuple of Tensor
        Sorted row indices of train, validation and test.

    Raises
    ------
    RedxError
        Where the shares do not sum to 1, or a split with a positive share would be empty.

    Examples
    --------
    >>> train, validation, test = split_rows([str(row) for row in range(10)], (0.8, 0.1, 0.1), "disjoint", seed=0)
    >>> len(train), len(validation), len(test)
    (8, 1, 1)
    """
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
        by_key: dict[str, list[int]] = {}
        for row in rows:
            by_key.setdefault(keys[row], []).append(row)  # the first row of a group is a random one
        questions = sorted(by_key)  # the split of a question does not depend on the order of the rows
        order = torch.randperm(len(questions), generator=generator(seed, "split", "questions")).tolist()
        groups = [by_key[questions[index]] for index in order]
    ends = [0, round(len(groups) * shares[0]), round(len(groups) * (shares[0] + shares[1])), len(groups)]
    parts = [groups[start:end] for start, end in pairwise(ends)]
    if not all(part or not share for part, share in zip(parts, shares, strict=True)):
        what = "distinct questions" if kind == "disjoint" else "rows"
        raise RedxError(f"{len(groups)} {what} are too few for the shares {shares}; add questions or change shares.")
    return _to_rows(*parts)


def share_seen(train_keys: Sequence[str], test_keys: Sequence[str]) -> float:
    """Return the share of the test questions that also occur in train."""
    known = set(train_keys)
    return sum(key in known for key in test_keys) / max(1, len(test_keys))


def split_by_domain(keys: Sequence[str], every: Split, kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of train, validation and test, 8 : 1 : 1 within every domain.

    Labels are divided in the same proportion as far as a domain has enough examples, and every label has an example in
    train.

    Parameters
    ----------
    keys
        One key per row; rows with the same key are the same example.
    every
        All N examples.
    kind
        `random` divides rows. With `disjoint`, rows of the same key are in the same split, and validation and test keep
        one row per key, since repeated examples would not be exchangeable with the others.
    seed
        Seed of the random division.

    Returns
    -------
    tuple of Tensor
        Sorted row indices of train, validation and test.
    """
    order: list[int] = torch.randperm(len(keys), generator=generator(seed, "own", "rows")).tolist()
    groups: dict[object, list[int]] = {}
    for row in order:
        groups.setdefault(keys[row] if kind == "disjoint" else row, []).append(row)
    labels, domains = every.labels.tolist(), every.domains.tolist()
    by_domain: dict[int, list[list[int]]] = {}
    for group in groups.values():
        by_domain.setdefault(domains[group[0]], []).append(group)
    parts: tuple[list[list[int]], ...] = ([], [], [])
    for domain, queue in sorted(by_domain.items()):
        queue.sort(key=lambda group: labels[group[0]])  # every tenth group of a sorted queue gives all labels alike
        shift = int(torch.randint(10, (1,), generator=generator(seed, "own", "shift", domain)))
        turns = [(index + shift) % 10 for index in range(len(queue))]  # 0 to 7: train, 8: validation, 9: test
        if len(queue) < 10:  # too few for all three splits: test comes first
            turns = [9, *([8] if len(queue) > 7 else []), *[0] * len(queue)][: len(queue)]
            shuffled = torch.randperm(len(queue), generator=generator(seed, "own", "few", domain)).tolist()
            turns = [turns[index] for index in shuffled]
        for group, turn in zip(queue, turns, strict=True):
            parts[max(0, turn - 7)].append(group)
    known = {labels[group[0]] for group in parts[0]}
    for part in parts[1:]:
        for group in list(part):
            if labels[group[0]] not in known:
                known.add(labels[group[0]])
                part.remove(group)
                parts[0].append(group)
    return _to_rows(*parts)


def _to_rows(
    train: list[list[int]], validation: list[list[int]], test: list[list[int]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sorted rows: all rows of the groups in train, the first row of the groups in validation and test."""
    return (
        torch.tensor(sorted(row for group in train for row in group), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in validation), dtype=torch.long),
        torch.tensor(sorted(group[0] for group in test), dtype=torch.long),
    )


def sample_per_group(cells: np.ndarray, part: float, least: int, draw: torch.Generator) -> np.ndarray:
    """Return a mask of examples drawn at random from every group.

    Parameters
    ----------
    cells
        The group of every example, (N,).
    part
        Share of a group that is drawn.
    least
        Number of examples that are drawn from a group at least. With 0, a group is never drawn completely.
    draw
        Source of random numbers.

    Returns
    -------
    numpy.ndarray
        True for the examples that were drawn, (N,).
    """
    chosen = np.zeros(len(cells), bool)
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        count = min(max(least, round(part * len(rows))), len(rows) - 1 + least)
        chosen[rows[torch.randperm(len(rows), generator=draw).numpy()[:count]]] = True
    return chosen


def classes_are_disjoint(domains: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether every class belongs to one domain alone, for domains (N,) and labels (N,)."""
    return len(set(zip(domains.tolist(), labels.tolist(), strict=True))) == len(set(labels.tolist()))
