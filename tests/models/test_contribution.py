"""An owner whose statistics are wrong is found by leaving it out; an honest one is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from redx.data.dataset import Split
from redx.models.contribution import LEVEL, TAKEN, Contribution, measure_contribution
from redx.models.feature_map import FeatureMap
from redx.models.ridge_head import StatisticsPool, solve
from redx.models.statistics import Statistics, add_up, collect
from redx.seeding import generator

CLASSES, MAP = ("a", "b", "c", "d"), FeatureMap(6, 40)
DRAWS = 400

Poison = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
POISONS: dict[str, Poison] = {
    "labels permuted": lambda h, labels: (h, (labels + 1) % 4),
    "features scaled": lambda h, labels: (1e3 * h[labels < 2], labels[labels < 2]),  # now nobody else counts
    "one class": lambda h, labels: (h, torch.zeros_like(labels)),
}


def draw(name: str, count: int, seed: int = 0) -> Split:
    purpose = generator(seed, name)
    h = torch.randn(count, 6, generator=purpose)
    noisy = h[:, :4] + 0.5 * torch.randn(count, 4, generator=purpose)
    return Split(h, noisy.argmax(1), torch.zeros(count, dtype=torch.long))


def collected(split: Split) -> Statistics:
    return collect(MAP, split.inputs, split.labels, CLASSES)


def contribution(new: Statistics, choices: int = 300, shared: int = 100, seed: int = 0) -> Contribution:
    """Return what a new owner does to the base of another owner and the shared examples."""
    owners = {"old": collected(draw("old", 200, seed)), "new": new}
    pool = StatisticsPool(MAP, lambda: draw("shared", shared, seed), lambda: draw("choices", choices, seed))
    marks = {name: own.mark for name, own in owners.items()}
    within, labels = pool.held_answers(marks, owners.__getitem__, CLASSES)
    without, _ = pool.held_answers({"old": marks["old"]}, owners.__getitem__, CLASSES)
    return measure_contribution(within, without, labels)


@pytest.mark.parametrize("choices", [300, 0])
@pytest.mark.parametrize("poison", POISONS.values(), ids=list(POISONS))
def test_wrong_statistics_are_found(poison: Poison, choices: int) -> None:
    own = draw("new", 900)
    h, labels = poison(own.inputs, own.labels)
    new = collect(MAP, h, labels, CLASSES)
    new.check_possible()  # each of them is a sum of some examples
    found = contribution(new, choices, shared=300)
    assert found.examples == (choices or 300)
    assert found.is_harmful, found
    assert found.within < found.without
    assert not contribution(collected(own), choices, shared=300).is_harmful


def test_shared_examples_are_left_out_where_choices_are_few() -> None:
    """An owner that repeats the shared examples with other labels is found by them: they are not in their own base."""
    shared = draw("shared", 300)
    assert contribution(collect(MAP, shared.inputs, (shared.labels + 1) % 4, CLASSES), 20, 300).examples == 320
    owners = {"old": collected(draw("old", 200))}
    pool = StatisticsPool(MAP, lambda: shared)
    answers, labels = pool.held_answers({"old": owners["old"].mark}, owners.__getitem__, CLASSES)
    head = pool.head({"old": owners["old"].mark}, owners.__getitem__, CLASSES)
    used = MAP.plain + int(head.chosen["random"])
    shift = head.chosen["penalty"] * float(pool.total(owners, CLASSES).gram[:used, :used].diagonal().mean())
    for row in range(0, 300, 30):
        total = add_up({"shared": collected(shared.only(torch.arange(300) != row)), "old": owners["old"]}, CLASSES)
        gram = total.gram[:used, :used] + shift * torch.eye(used, dtype=torch.float64)
        outputs = MAP(shared.inputs[row : row + 1]).double()[0, :used] @ torch.linalg.solve(gram, total.moments[:used])
        assert int(outputs.argmax()) == int(answers[row])
    assert torch.equal(labels, shared.labels)


def test_an_owner_of_no_consequence_is_refused_no_more_often_than_promised() -> None:
    """Half of the owners add examples like those that are there already, so they help as often as they harm."""
    refused = 0
    for seed in range(DRAWS):
        owners = {name: collected(draw(name, 200, seed)) for name in ("first", "second", "third")}
        held = draw("held", 300, seed)
        pairs = [{"first": owners["first"], name: owners[name]} for name in ("second", "third")]
        answers = [(MAP(held.inputs).double() @ solve(add_up(pair, CLASSES), 0.01)).argmax(1) for pair in pairs]
        found = measure_contribution(answers[0], answers[1], held.labels)  # bases that are equally good
        assert found.helped + found.harmed > 10
        refused += found.is_harmful
    assert refused <= binom.ppf(0.999, DRAWS, LEVEL)


def test_an_honest_owner_is_not_refused() -> None:
    found = [contribution(collected(draw("new", 100, seed)), seed=seed) for seed in range(40)]
    assert not [one for one in found if one.is_harmful]


def test_new_classes_may_take_some_examples_and_no_more() -> None:
    labels = torch.zeros(1000, dtype=torch.long)

    def answers(taken: int) -> Tensor:
        return torch.where(torch.arange(1000) < taken, 4, 0)

    few, many = (measure_contribution(answers(taken), labels, labels, [4]) for taken in (30, 90))
    assert (few.taken, few.harmed, few.is_harmful) == (30, 30, False)
    assert (many.taken, many.is_harmful) == (90, True)
    assert measure_contribution(answers(30), labels, labels).is_harmful  # the class is not the owner's own
    refused = sum(
        measure_contribution(answers(int(taken)), labels, labels, [4]).is_harmful
        for taken in numpy.random.default_rng(0).binomial(1000, TAKEN, size=DRAWS)
    )
    assert refused <= binom.ppf(0.999, DRAWS, LEVEL)


def test_nothing_is_found_without_examples() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert not measure_contribution(none, none, none).is_harmful
    assert not measure_contribution(none, none, none, [1]).is_harmful
