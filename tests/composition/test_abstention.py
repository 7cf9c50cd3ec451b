"""Abstention: class means, familiarity, and the promised rate of false abstentions."""

from __future__ import annotations

import pytest
import torch

from redx.composition.abstention import abstention_cutoff, class_means, familiarity
from redx.errors import RedxError
from redx.seeding import generator


def test_the_mean_of_a_class_is_a_direction_and_the_best_class_counts() -> None:
    features = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, -3.0]])
    means = class_means(features, torch.tensor([4, 4, 7]))
    assert torch.allclose(means.norm(dim=-1), torch.ones(2))
    scores = familiarity(torch.tensor([[0.0, -9.0], [0.0, 5.0]]), means)
    assert torch.allclose(scores, torch.tensor([1.0, float(means[0, 1])]))


@pytest.mark.parametrize(("rate", "count"), [(0.05, 99), (0.1, 30), (0.02, 250)])
def test_false_abstentions_stay_below_the_rate_over_many_draws(rate: float, count: int) -> None:
    draw = generator(0, "scores")
    population = torch.randn(20_000, generator=draw)
    shares = []
    for _ in range(2_000):
        held = population[torch.randint(len(population), (count,), generator=draw)]
        shares.append(float((population < abstention_cutoff(held, rate)).double().mean()))
    assert sum(shares) / len(shares) <= rate * 1.02


def test_ties_never_abstain_more_often() -> None:
    scores = torch.zeros(99)
    assert not bool((scores < abstention_cutoff(scores, 0.05)).any())


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(RedxError, match=r"0\.01 cannot be promised with 30 .* at least 0\.0323"):
        abstention_cutoff(torch.zeros(30), 0.01)
    for rate in (0.0, 1.0, -1.0):
        with pytest.raises(RedxError, match="between 0 and 1"):
            abstention_cutoff(torch.zeros(30), rate)
