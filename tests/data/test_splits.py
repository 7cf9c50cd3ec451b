"""Splits: shares are met, no question is on both sides of a disjoint split, and only the seed decides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redx.data import splits
from redx.data.dataset import Split
from redx.data.splits import share_seen, split_rows
from redx.errors import RedxError
from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.questions import make
from redx.tasks.custom.loading import MIN_TRAIN

SHARES = (0.8, 0.1, 0.1)


def chosen(keys: list[str], *arguments: Any) -> list[list[str]]:
    """The keys in each split."""
    return [[keys[row] for row in rows.tolist()] for rows in split_rows(keys, *arguments)]


@given(
    keys=st.lists(st.integers(0, 60).map(str), min_size=100, max_size=300).filter(lambda keys: len(set(keys)) > 20),
    seed=st.integers(0, 2**40),
)
def test_a_disjoint_split_distributes_whole_questions(keys: list[str], seed: int) -> None:
    train, validation, test = chosen(keys, SHARES, "disjoint", seed)
    distinct = len(set(keys))
    assert set(train) | set(validation) | set(test) == set(keys)
    assert (
        len(set(train)) + len(validation) + len(test) == distinct
    )  # no question twice in validation, test or two splits
    assert Counter(train) == {key: count for key, count in Counter(keys).items() if key in set(train)}
    for part, share in zip((train, validation, test), SHARES, strict=True):
        assert abs(len(set(part)) - share * distinct) <= 1
    assert share_seen(train, test) == share_seen(train, validation) == 0


@given(rows=st.integers(20, 300), seed=st.integers(0, 2**40))
def test_a_random_split_distributes_rows(rows: int, seed: int) -> None:
    divided = split_rows(["same"] * rows, SHARES, "random", seed)
    assert torch.cat(divided).sort().values.tolist() == list(range(rows))
    for part, share in zip(divided, SHARES, strict=True):
        assert abs(len(part) - share * rows) <= 1


@pytest.mark.parametrize("kind", ["disjoint", "random"])
def test_rows_are_sorted_and_depend_on_the_seed_alone(kind: Any) -> None:
    keys = [str(row % 70) for row in range(200)]
    first, again, other = (split_rows(keys, SHARES, kind, seed) for seed in (0, 0, 1))
    for rows in first:
        assert rows.dtype == torch.long
        assert torch.equal(rows, rows.sort().values)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


def test_the_split_of_a_question_does_not_depend_on_the_order_or_number_of_rows() -> None:
    keys = [str(row % 70) for row in range(200)]
    first, *others = (list(map(set, chosen(rows, SHARES, "disjoint", 3))) for rows in (keys, keys[::-1], keys[:70]))
    assert others == [first, first]


def test_any_occurrence_of_a_question_can_be_the_one_that_is_kept() -> None:
    _, validation, test = split_rows([str(row // 10) for row in range(1000)], SHARES, "disjoint", 0)
    assert len({row % 10 for row in torch.cat((validation, test)).tolist()}) > 5


def test_wordings_of_one_question_stay_together() -> None:
    texts = [
        f(left, right)
        for left in range(1, 16)
        for right in range(1, 16)
        for f in (
            "What is {} plus {}?".format,
            "{} + {}".format,
            "the sum of {} and {}".format,
            lambda a, b: f"Add {b} to {a}.",
        )
    ]
    train, validation, test = chosen([canonical(text) for text in texts], SHARES, "disjoint", 0)
    assert not set(train) & set(test) | set(train) & set(validation) | set(validation) & set(test)
    assert len(train) == 4 * 180
    assert len(validation) + len(test) == 45
    assert len(set(chosen(texts, SHARES, "disjoint", 0)[0])) == 720  # by text alone, wordings fall apart:
    assert share_seen(*([canonical(text) for text in part] for part in chosen(texts, SHARES, "disjoint", 0)[::2])) > 0.9


def test_a_random_split_of_additions_has_seen_nearly_every_test_question() -> None:
    keys = [canonical(record["question"]) for record in make("addition", 20_000, 0)]
    for kind, low, high in (("random", 0.99, 1.0), ("disjoint", 0.0, 0.0)):
        train, _, test = chosen(keys, SHARES, kind, 0)
        assert low <= share_seen(train, test) <= high


def test_the_share_seen_counts_test_questions() -> None:
    assert share_seen(["a", "a", "b"], ["a", "c", "a", "d"]) == 0.5
    assert share_seen([], ["a"]) == share_seen(["a"], []) == 0


def test_a_split_may_be_left_out() -> None:
    train, validation, test = split_rows(list("abcdefghij"), (0.9, 0.0, 0.1), "disjoint", 0)
    assert (len(train), len(validation), len(test)) == (9, 0, 1)


@pytest.mark.parametrize(
    ("keys", "shares", "kind", "message"),
    [
        (["a", "b"] * 50, SHARES, "disjoint", "2 distinct questions are too few for the shares"),
        (["a", "b"], SHARES, "random", "2 rows are too few"),
        ([], SHARES, "disjoint", "0 distinct questions are too few"),
        (list("abcdefghij"), (0.8, 0.1, 0.2), "disjoint", "do not sum to 1"),
        (list("abcdefghij"), (1.2, -0.1, -0.1), "random", "do not sum to 1"),
        (list("abcdefghij"), (float("nan"), 0.5, 0.5), "random", "do not sum to 1"),
        (list("abcdefghij"), (0.9, 0.1), "random", "do not sum to 1"),
        (list("abcdefghij"), SHARES, "leaky", "no split called 'leaky'; choose disjoint or random"),
    ],
)
def test_what_cannot_be_split_is_refused(keys: list[str], shares: Any, kind: Any, message: str) -> None:
    with pytest.raises(RedxError, match=message):
        split_rows(keys, shares, kind, 0)


def test_a_split_by_domain_is_fair_and_disjoint() -> None:
    labels, domains = torch.arange(400) % 5, torch.arange(400) % 2
    keys = [str(at // 2) for at in range(400)]  # every text twice
    every = Split(torch.arange(400), labels, domains)
    train, validation, test = splits.split_by_domain(keys, every, "disjoint", 0)
    divided = [{keys[row] for row in some.tolist()} for some in (train, validation, test)]
    assert not divided[0] & divided[1] | divided[0] & divided[2] | divided[1] & divided[2]
    assert set().union(*divided) == set(keys)
    assert [len(some) for some in divided] == [160, 20, 20]
    assert len(test) == 20  # one of each
    assert set(labels[test].tolist()) == set(range(5))
    again = splits.split_by_domain(keys, every, "disjoint", 0)
    assert all(torch.equal(one, other) for one, other in zip((train, validation, test), again, strict=True))
    assert not torch.equal(test, splits.split_by_domain(keys, every, "disjoint", 1)[2])
    assert sum(map(len, splits.split_by_domain(keys, every, "random", 0))) == 400


@pytest.mark.parametrize("size", [5, 7, 8, 10, 11])
def test_small_domains_keep_enough_training_examples(size: int) -> None:
    every = Split(torch.arange(size), torch.arange(size), torch.zeros(size).long())
    train, validation, test = splits.split_by_domain([str(at) for at in range(size)], every, "disjoint", 3)
    assert len(train) == size  # every label occurs once: all of them are needed there
    every = Split(torch.arange(size), torch.zeros(size).long(), torch.zeros(size).long())
    train, validation, test = splits.split_by_domain([str(at) for at in range(size)], every, "disjoint", 3)
    assert len(test) in (1, 2)
    assert len(validation) <= 2
    assert len(train) + len(validation) + len(test) == size
    assert len(train) >= min(size - 1, MIN_TRAIN) or size == 5
