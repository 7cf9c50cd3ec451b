"""`redx.runs.check`: exact bounds, what is counted, floors, risk, and the comparison of two runs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import redx
from helpers.checked_runs import DOMAINS, draw_answers, with_answers, write_risk, write_run
from redx.composition.metrics import upper_bound
from redx.composition.parts import Parts
from redx.config import BankId
from redx.errors import RedxError
from redx.runs.check import Floors, check_run, lower_bound, mean_bound, mean_count, worse_p_value
from redx.runs.check_output import Check, table_rows
from redx.runs.parts import write_parts

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(clouds: redx.Run, tmp_path: Path) -> MakeRun:
    """Write a run folder with the given parts, under a name."""

    def make(name: str, *parts: Parts, **changes: Any) -> Path:
        return write_run(tmp_path / name, clouds, *parts, **changes)

    return make


def only(run: Path, **floors: float) -> Check:
    """Return the only check of a run."""
    (check,) = check_run(run, Floors(**floors)).checks
    return check


# --- bounds


def at_least(count: int, examples: int, share: float) -> float:
    """Return the probability of at least so many successes."""
    return sum(math.comb(examples, k) * share**k * (1 - share) ** (examples - k) for k in range(count, examples + 1))


def bisect(increasing: Callable[[float], float], level: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < level else (low, middle)
    return low


@pytest.mark.parametrize("confidence", [0.6, 0.95, 0.999])
@pytest.mark.parametrize("examples", [1, 2, 7, 30])
def test_bounds_are_where_the_binomial_tail_has_the_level(examples: int, confidence: float) -> None:
    for count in range(examples + 1):
        low = bisect(lambda share, count=count: at_least(count, examples, share), 1 - confidence) if count else 0.0
        assert lower_bound(count, examples, confidence) == pytest.approx(low, abs=1e-9)
        high = 1 - low
        assert upper_bound(examples - count, examples, confidence) == pytest.approx(high, abs=1e-9)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_bounds_hold_at_least_as_often_as_they_say(confidence: float) -> None:
    examples = 14
    bounds = [
        (lower_bound(count, examples, confidence), upper_bound(count, examples, confidence))
        for count in range(examples + 1)
    ]
    for share in torch.linspace(0.001, 0.999, 400).tolist():
        chances = [
            math.comb(examples, count) * share**count * (1 - share) ** (examples - count)
            for count in range(examples + 1)
        ]
        for side in (0, 1):
            fails = [bound[side] > share if side == 0 else bound[side] < share for bound in bounds]
            assert sum(itertools.compress(chances, fails)) <= 1 - confidence + 1e-9


def test_the_mean_over_seeds_is_rounded_to_the_safe_side() -> None:
    assert mean_count([(29, 100)]) == (0.29, 29, 100)  # 0.29 * 100 is less than 29 for a computer
    assert mean_count([(7, 10), (8, 10)]) == (0.75, 7, 10)
    assert mean_count([(7, 10), (8, 10)], up=True) == (0.75, 8, 10)
    assert mean_count([(10, 10), (10, 20)]) == (0.75, 7, 10)


def test_the_p_value_counts_all_ways_to_draw_gains_and_losses() -> None:
    for gained, lost in itertools.product(range(6), repeat=2):
        draws = list(itertools.product((0, 1), repeat=gained + lost))
        expected = Fraction(sum(sum(draw) >= lost for draw in draws), len(draws))
        assert worse_p_value(gained, lost) == pytest.approx(float(expected))


# --- what is counted


def test_the_figures_are_those_of_every_router_one_by_one(make_run: MakeRun) -> None:
    parts = draw_answers(200)
    run = make_run("run", parts)
    base_right = parts.base.argmax(-1) == parts.labels
    composed = parts.base + (parts.gates.softmax(-1)[..., None] * parts.residuals).sum(1)
    right = composed.argmax(-1) == parts.labels
    vertices = (parts.base[:, None] + parts.residuals).argmax(-1) == parts.true_labels()[:, None]
    safe = vertices.all(1)  # margins are affine in the weights, so the worst router picks one expert
    harmed = base_right & ~safe
    assert 0 < int(safe.sum()) < int(right.sum()) < 200
    assert int(harmed.sum()) > 0
    for name, which in {"min_accuracy": right, "min_certified": safe, "max_harm": harmed}.items():
        check = only(run, **{name: 0.5})
        bound = (upper_bound if name == "max_harm" else lower_bound)(int(which.sum()), 200, 0.95)
        assert (check.measured, check.bound) == (pytest.approx(float(which.double().mean())), bound)


@pytest.mark.parametrize("rule", ["red", "sum", "moe/plain", "base", "global"])
def test_the_figures_agree_with_the_summary_of_a_finished_run(clouds: redx.Run, rule: str) -> None:
    result = check_run(clouds.folder, Floors(min_accuracy=0.1, min_certified=0.0, min_domain=0.0), rule=rule)
    figures = clouds.summary["rules"][rule]
    accuracy, certified, domain = result.checks
    assert accuracy.measured == pytest.approx(figures["accuracy"]["mean"])
    assert certified.measured == pytest.approx(figures["certified"]["1"])
    assert figures["per_domain"][domain.domain] == pytest.approx(domain.measured)
    assert result.examples == clouds.summary["data"]["test"]


def test_test_examples_count_once_however_many_seeds_there_are(make_run: MakeRun) -> None:
    parts, other = draw_answers(seed=0), draw_answers(seed=1)
    floors = Floors(min_accuracy=0.1, min_certified=0.1, max_harm=0.9, min_domain=0.1)
    one, three = (check_run(make_run(name, *[parts] * seeds), floors) for name, seeds in (("one", 1), ("three", 3)))
    assert one.checks == three.checks
    mixed = check_run(make_run("mixed", parts, other), floors).checks[0]
    both = [check_run(make_run(name, one), floors).checks[0].measured for name, one in (("a", parts), ("b", other))]
    assert mixed.measured == pytest.approx(sum(share or 0 for share in both) / 2)


def test_the_worst_domain_is_the_one_with_the_lowest_bound(make_run: MakeRun) -> None:
    right = [True] * 96 + [False] * 4 + [True] * 3  # 0.96 of a hundred, and all of three
    check = only(make_run("run", with_answers(right, [0] * 100 + [2] * 3)), min_domain=0.5)
    assert (check.domain, check.measured, check.ok) == (DOMAINS[2], 1.0, False)
    assert check.bound == lower_bound(3, 3, 0.95)
    assert "3 test examples can show no more than 0.3684" in check.reason


@pytest.mark.parametrize("name", ["min_accuracy", "min_certified", "max_harm", "min_domain"])
def test_a_floor_holds_up_to_the_bound_and_no_further(make_run: MakeRun, name: str) -> None:
    run = make_run("run", draw_answers())
    bound = only(run, **{name: 0.5}).bound
    assert bound is not None
    beyond = math.nextafter(bound, 0.0 if name == "max_harm" else 1.0)
    assert only(run, **{name: bound}).ok
    broken = only(run, **{name: beyond})
    assert not broken.ok
    assert "bound" in broken.reason


def test_a_higher_confidence_gives_a_wider_bound(make_run: MakeRun) -> None:
    run, floors = make_run("run", draw_answers()), Floors(min_accuracy=0.5, max_harm=0.5)
    low, high = (check_run(run, floors, confidence=confidence).checks for confidence in (0.8, 0.99))
    assert (low[0].bound or 0) > (high[0].bound or 0)
    assert (low[1].bound or 0) < (high[1].bound or 0)


# --- risk


def test_the_largest_risk_of_all_seeds_counts(make_run: MakeRun) -> None:
    run = make_run("run", draw_answers(), draw_answers(seed=1))
    write_risk(run, 0, 0.005)
    assert only(run, max_risk=0.01).reason == "the run is not calibrated"
    write_risk(run, 1, 0.01)
    assert only(run, max_risk=0.01).ok
    broken = only(run, max_risk=0.009)
    assert (broken.measured, broken.ok) == (0.01, False)
    assert "0.01, above 0.009" in broken.reason


def test_a_calibration_counts_only_for_the_rules_that_it_covers(make_run: MakeRun) -> None:
    run = make_run("run", draw_answers())
    write_risk(run, 0, 0.01)
    holds = {rule: check_run(run, Floors(max_risk=0.01), rule=rule).ok for rule in ("red", "fixed", "base", "sum")}
    assert holds == {"red": True, "fixed": True, "base": True, "sum": True}
    config = json.loads((run / "config.json").read_text())
    config["main"]["residual"] = "anchored"
    (run / "config.json").write_text(json.dumps(config))
    (run / "seed-0" / "parts" / "residual-risk.safetensors").unlink()
    write_parts(run / "seed-0" / "parts", {BankId("residual", "anchored"): draw_answers()}, DOMAINS, len(DOMAINS))
    assert only(run, max_risk=0.01).reason == "the rule red is not under risk control"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"risk": 2}', '{"risk": "0.01"}', '{"risk": NaN}'])
def test_a_damaged_calibration_is_an_error_and_no_broken_floor(make_run: MakeRun, content: str) -> None:
    run = make_run("run", draw_answers())
    (run / "seed-0" / "risk.json").write_text(content)
    with pytest.raises(RedxError, match=r"risk\.json"):
        check_run(run, Floors(max_risk=0.01))


# --- against another run


def test_a_run_is_broken_only_where_losses_are_significant(make_run: MakeRun) -> None:
    old = make_run("old", with_answers([True] * 20 + [False] * 20))
    cases = {(0, 0): True, (0, 4): True, (0, 5): False, (20, 5): True, (3, 12): False}
    for number, ((gained, lost), ok) in enumerate(cases.items()):
        right = [False] * lost + [True] * (20 - lost) + [True] * gained + [False] * (20 - gained)
        result = check_run(make_run(f"new {number}", with_answers(right)), Floors(), against=old)
        assert [(check.gained, check.lost, check.ok) for check in result.checks] == [(gained, lost, ok)] * 2
        assert result.checks[0].measured == pytest.approx((gained - lost) / 40)


def test_lost_certificates_are_found_where_no_clean_answer_is_lost(make_run: MakeRun) -> None:
    parts = with_answers([True] * 30)
    old = make_run("old", parts)
    parts.residuals[:, 1, 1] = 3.0  # the second expert alone outvotes the base
    parts.gates[:, 0] = 9.0  # and the router does not choose it
    clean, certified = check_run(make_run("new", parts), Floors(), against=old).checks
    assert (clean.ok, clean.lost) == (True, 0)
    assert (certified.ok, certified.lost) == (False, 30)


def test_gains_and_losses_are_means_over_the_seeds_that_both_runs_have(make_run: MakeRun) -> None:
    all_right, some = with_answers([True] * 9), with_answers([False] * 3 + [True] * 6)
    old, new = make_run("old", all_right, all_right), make_run("new", some, all_right, some)
    result = check_run(new, Floors(), against=old)
    check = result.checks[0]
    assert (check.lost, check.bound, check.seeds) == (1.5, worse_p_value(0, 1), (0, 1))
    assert table_rows(result)[0][0] == "against-accuracy, seeds 0, 1 only"
    assert table_rows(check_run(old, Floors(), against=new))[0][0] == "against-accuracy"


def test_runs_of_other_test_splits_do_not_compare(make_run: MakeRun) -> None:
    old = make_run("old", with_answers([True] * 9))
    for name, parts, test_hash in [("hash", [True] * 9, "other"), ("size", [True] * 8, "same")]:
        new = make_run(name, with_answers(parts), test_hash=test_hash)
        with pytest.raises(RedxError, match=r"different test splits \(seed 0\)"):
            check_run(new, Floors(), against=old)
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"seeds": [7]}))
    with pytest.raises(RedxError, match="no seed in common"):
        check_run(new, Floors(), against=old)


def test_a_rule_that_a_run_cannot_follow_is_refused(make_run: MakeRun) -> None:
    run = make_run("run", draw_answers())
    with pytest.raises(RedxError, match="moe"):
        check_run(run, Floors(min_accuracy=0.5), rule="moe")
    with pytest.raises(RedxError, match="nothing to check"):
        check_run(run, Floors())


def test_mean_bound_holds_as_often_as_it_says() -> None:
    """Of 2,000 samples of 20 shares, the bound exceeds the expectation in at most 10 %, for three distributions."""
    draw = torch.Generator().manual_seed(0)
    coins = (torch.rand(2000, 20, generator=draw) < 0.3).double()
    even = torch.rand(2000, 20, generator=draw).double()
    for values, expectation in ((coins, 0.3), (even, 0.5), (1 - coins, 0.7)):
        bounds = [mean_bound(float(row.mean()), 20, 0.9) for row in values]
        assert sum(bound > expectation for bound in bounds) <= 200
        assert max(bounds) > 0.1, "a bound of zero would hold as well"


def test_bounds_of_groups_where_all_shares_agree() -> None:
    """Where every group has a share of 0 or 1, the bound of a mean is the exact one of a share."""
    assert 1 - mean_bound(1.0, 100, 0.95) == pytest.approx(upper_bound(0, 100, 0.95))
