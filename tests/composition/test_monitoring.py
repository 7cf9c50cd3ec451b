"""Tests of a promise over time: fair bets by exact enumeration, false alarms, detection, order and bound."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from scipy import integrate

from redx.composition.monitoring import (
    CELLS,
    ConfidenceTest,
    HarmTest,
    Monitor,
    harm_lower_bound,
    log_harm_wealth,
    log_rank_bets,
    share_delta,
)
from redx.errors import RedxError

RISK = 0.01


def wealth(harm: float, lines: int, risk: float = RISK) -> float:
    return float(np.exp(log_harm_wealth(harm, lines, risk)))


# --- harm


@pytest.mark.parametrize("risk", [0.01, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_wealth_of_harm_is_a_nonnegative_supermartingale(risk: float, share: float) -> None:
    chance = share * risk  # under the null
    for steps in range(6):
        for before in product((0, 1), repeat=steps):
            harm = sum(before)
            mean = chance * wealth(harm + 1, steps + 1, risk) + (1 - chance) * wealth(harm, steps + 1, risk)
            assert 0 <= mean <= wealth(harm, steps, risk) * (1 + 1e-12)
            if share == 1:
                assert mean == pytest.approx(wealth(harm, steps, risk))
    assert wealth(0, 0, risk) == pytest.approx(1)


def test_harm_between_0_and_1_pays_no_more() -> None:
    values, chances = np.array([0, 0.25, 0.5, 1]), np.array([0.9, 0.06, 0.02, 0.02])
    mean = float(values @ chances)
    assert sum(chances * [wealth(value, 1, mean) for value in values]) <= 1
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(RedxError, match="between 0 and 1"):
            HarmTest(RISK, 0.05).update(wrong)


def test_a_drifting_chance_below_the_risk_is_no_alarm_either() -> None:
    def worst(steps: int, harm: int, lines: int) -> float:  # the largest mean wealth that any history can lead to
        if not steps:
            return wealth(harm, lines, 0.2)
        kept, lost = worst(steps - 1, harm, lines + 1), worst(steps - 1, harm + 1, lines + 1)
        return max(chance * lost + (1 - chance) * kept for chance in (0.0, 0.1, 0.2))

    assert worst(5, 0, 0) <= 1 + 1e-12


def test_the_probability_of_ever_reaching_the_alarm_is_at_most_delta() -> None:
    risk, delta, alive, alarmed = 0.1, 0.1, {0: 1.0}, 0.0  # exact: the chances of every count of harm without an alarm
    for lines in range(1, 400):
        after: dict[int, float] = {}
        for harm, chance in alive.items():
            for more, part in ((0, 1 - risk), (1, risk)):
                after[harm + more] = after.get(harm + more, 0.0) + chance * part
        alive = {harm: chance for harm, chance in after.items() if wealth(harm, lines, risk) < 1 / delta}
        alarmed += sum(chance for harm, chance in after.items() if harm not in alive)
    assert 0.01 < alarmed <= delta


def test_harm_is_detected() -> None:
    draw, found = np.random.default_rng(0), []
    for _ in range(60):
        test = HarmTest(RISK, share_delta(0.05, 0).overall)
        while not test.alarm:
            test.update(draw.random() < 3 * RISK)
        found.append(test.lines)
    assert np.median(found) <= 500
    assert np.quantile(found, 0.95) <= 1_000


def test_the_order_of_lines_changes_the_path_alone() -> None:
    outcomes = [1, 1, 0, 0, 0, 1, 0, 0]
    ends = set()
    for order in set(permutations(outcomes)):
        test = HarmTest(RISK, 0.05)
        for harm in order:
            test.update(harm)
        ends.add((test.lines, test.harm, round(test.log_wealth, 9)))
    assert len(ends) == 1


def test_an_alarm_stays() -> None:
    test = HarmTest(RISK, 0.05)
    for harm in [True] * 10 + [False] * 5_000:
        test.update(harm)
    assert test.log_wealth < 0
    assert test.alarm
    assert test.lower > RISK


def test_the_bound_agrees_with_the_alarm_and_covers() -> None:
    assert harm_lower_bound(0, 1_000, 0.05) == 0
    for harm, lines in ((3, 50), (12, 700), (40, 40)):
        bound = harm_lower_bound(harm, lines, 0.05)
        assert 0 < bound < harm / lines
        assert wealth(harm, lines, bound + 1e-6) < 20 <= wealth(harm, lines, bound - 1e-6)
    draw, missed = np.random.default_rng(1), 0
    for _ in range(100):
        test = HarmTest(0.0, 0.1)
        for harm in draw.random(600) < 0.1:
            test.update(harm)
        missed += test.lower > 0.1
    assert missed <= 10


# --- confidences


@pytest.mark.parametrize("column", range(12))
def test_bets_on_uniform_ranks_are_fair(column: int) -> None:
    paid = integrate.quad(lambda p: math.exp(log_rank_bets(np.array([p]))[0, column]), 0, 1, points=[0.5], limit=400)[0]
    assert 0.95 < paid <= 1 + 1e-6


def test_the_ranks_of_exchangeable_values_are_independent_and_uniform() -> None:
    """Every order of four values, two of them equal, is as likely: all sequences of ranks are, but for ties."""
    counts: dict[tuple[int, ...], Fraction] = {}
    for order in permutations([1.0, 2.0, 2.0, 5.0]):
        ranks: list[list[tuple[int, Fraction]]] = []
        for place, value in enumerate(order):
            above = sum(one > value for one in order[:place])
            equal = sum(one == value for one in order[:place]) + 1  # the random number spreads these evenly
            ranks.append([(above + one, Fraction(1, equal)) for one in range(equal)])
        for path in product(*ranks):
            chance = math.prod((part for _, part in path), start=Fraction(1, 24))
            key = tuple(rank for rank, _ in path)
            counts[key] = counts.get(key, Fraction(0)) + chance
    assert counts == {path: Fraction(1, 24) for path in product(range(1), range(2), range(3), range(4))}


def test_p_values_are_the_smoothed_ranks() -> None:
    test, seen, draw = ConfidenceTest(0.05), [], np.random.default_rng(2)
    for value in draw.integers(-4, 5, 300).astype(float):
        (p,) = test.update(value)
        above, equal = sum(one > value for one in seen), sum(one == value for one in seen) + 1
        assert above <= p * (len(seen) + 1) <= above + equal
        seen.append(value)


@pytest.mark.parametrize("ties", [False, True])
def test_exchangeable_confidences_are_no_alarm(ties: bool) -> None:
    draw = np.random.default_rng(3)
    test = ConfidenceTest(0.1, streams=300)
    test.compare_with(np.round(draw.normal(size=(50, 300)), 0 if ties else 9))
    ranks = [test.update(np.round(draw.normal(size=300), 0 if ties else 9)) for _ in range(1_500)]
    assert test.alarm.mean() <= 0.1
    assert np.concatenate(ranks).mean() == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize(("shift", "spread"), [(-1.0, 1.0), (1.0, 1.0), (0.0, 2.5), (0.0, 0.3)])
@pytest.mark.parametrize("before", [0, 2_000])
def test_changed_confidences_are_detected(shift: float, spread: float, before: int) -> None:
    draw = np.random.default_rng(4)
    test = ConfidenceTest(0.025, streams=20)
    test.compare_with(draw.normal(size=(500, 20)))
    for _ in range(before):
        test.update(draw.normal(size=20))
    assert not test.alarm.any()
    for _ in range(300):
        test.update(shift + spread * draw.normal(size=20))
    assert test.alarm.all()


def test_infinite_confidences_have_a_rank_and_nan_has_none() -> None:
    test = ConfidenceTest(0.05)
    for value in (-math.inf, math.inf, 1e300, 0.0):
        test.update(value)
    with pytest.raises(RedxError, match="NaN"):
        test.update(math.nan)
    assert test.lines == 4


def test_memory_does_not_grow() -> None:
    test = ConfidenceTest(0.05)
    for value in np.random.default_rng(5).normal(size=500):
        test.update(value)
    assert test._cells.size == CELLS
    assert set(vars(HarmTest(RISK, 0.05))) == {"risk", "delta", "lines", "harm", "peak", "lower"}


def test_equal_seeds_give_equal_states() -> None:
    values = np.random.default_rng(6).integers(0, 3, 200).astype(float)
    states = []
    for seed in (0, 0, 1):
        test = ConfidenceTest(0.05, seed)
        states.append([float(test.update(value)[0]) for value in values])
    assert states[0] == states[1] != states[2]


# --- all together


@pytest.mark.parametrize("domains", [0, 1, 7])
def test_the_parts_of_delta_sum_to_it(domains: int) -> None:
    parts = share_delta(0.05, domains)
    assert parts.confidences + parts.overall + domains * (parts.domain or 0) == pytest.approx(0.05)
    monitor = Monitor(RISK, [(str(one),) for one in range(domains)], tested=True)
    levels = [1 / reading.threshold for reading in monitor.readings() if reading.threshold]
    assert sum(levels) == pytest.approx(0.05)
    for wrong in (0, 1, -0.1, 1.5, math.nan):
        with pytest.raises(RedxError, match="between 0 and 1"):
            share_delta(wrong, domains)


def test_all_tests_together_raise_few_false_alarms() -> None:
    draw, alarms = np.random.default_rng(7), 0
    for seed in range(60):
        monitor = Monitor(0.1, [("a",), ("b",)], tested=True, delta=0.2, reference=draw.normal(size=50), seed=seed)
        for value, harmed, domain in zip(draw.normal(size=400), draw.random(400) < 0.1, draw.random(400), strict=True):
            monitor.add_confidence(value)
            monitor.add_label(harmed, "a" if domain < 0.5 else "b")
        alarms += monitor.alarm
    assert alarms <= 12


def test_one_bad_domain_is_named() -> None:
    monitor = Monitor(RISK, [("good",), ("bad",), ("few", "fewer")], tested=True)
    for line in range(900):
        monitor.add_label(line % 10 == 1 and line % 30 == 1, ("good", "bad", "fewer")[line % 3])
    alarmed = [reading.name for reading in monitor.readings() if reading.alarm]
    assert alarmed[-1] == "bad"
    assert "few + fewer" not in alarmed
    assert monitor.verdict().startswith("Alarm: the harm")
    with pytest.raises(RedxError, match="no domain 'else'"):
        monitor.add_label(False, "else")


def test_a_promise_over_all_lines_tests_no_domain() -> None:
    monitor = Monitor(RISK, [("a",), ("b",)], tested=False)
    for line in range(3_000):
        monitor.add_label(line % 150 == 1, "a" if line % 15 == 1 else "b")
    overall, bad, good, _ = monitor.readings()
    assert (bad.harmed, bad.e_value, bad.threshold, bad.alarm) == (20, None, None, False)
    assert (good.harmed, overall.threshold, overall.alarm) == (0, 40, False)
    assert monitor.verdict().startswith("No alarm: 3,000 labelled lines")


def test_the_verdict_without_labels() -> None:
    monitor = Monitor(RISK, reference=np.linspace(-3, 3, 300))
    monitor.add_confidence(0.1)
    assert monitor.verdict() == "No alarm: the confidences of 1 line raise no doubt; no line is labelled."
    for _ in range(200):
        monitor.add_confidence(-9.0)
    assert monitor.verdict().startswith("Alarm: the confidences are not like those")
