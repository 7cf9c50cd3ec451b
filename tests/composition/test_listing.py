"""What owners share under every rule and bank, and which rules a run has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from helpers.parts import draw_parts
from redx.composition.listing import rules_of_run, shares, with_shares
from redx.composition.parts import Parts
from redx.composition.rules import RULES, Rule, check_rule
from redx.config import BankConfig, BankId, RunConfig, StatisticsConfig
from redx.errors import RedxError
from redx.tasks import get_preset

WITH = get_preset("features", "quick").model_copy(update={"average": True})
WITHOUT = WITH.model_copy(update={"statistics": StatisticsConfig(use=False)})
BANKS = [*WITH.banks, BankId("averaged", "plain"), BankId("residual", "integrated")]  # the last of stage 4


def expected(rule: Rule, bank: BankId, statistics: bool) -> str:
    """Say again, by form and bank, what the listing derives from rules and settings."""
    if bank.form == "pooled" or bank.name == "integrated":
        return "data"
    if bank.form != "residual" or bank.name == "shared":
        return "nothing"
    return "sums" if statistics else "nothing"


@pytest.mark.parametrize("bank", BANKS, ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("config", [WITH, WITHOUT], ids=["statistics", "shared"])
def test_what_owners_share_follows_from_rule_bank_and_settings(rule: Rule, bank: BankId, config: RunConfig) -> None:
    if rule.form == bank.form and not rule.needs_statistics:
        assert shares(f"{rule.name}/{bank.name}", config) == expected(rule, bank, config.statistics.use)


def test_a_rule_alone_is_that_of_its_main_bank() -> None:
    wanted = dict.fromkeys(("base", "statistics", "red", "fixed", "sum", "red-oracle"), "sums")
    wanted |= dict.fromkeys(("moe", "uniform", "oracle", "average"), "nothing") | {"global": "data"}
    assert {name: shares(name, WITH) for name in RULES} == wanted
    assert {shares(name, WITHOUT) for name in RULES if name != "global"} == {"nothing"}


def test_a_rule_from_outside_needs_nothing_more_unless_it_says_so() -> None:
    weights: Callable[[Parts], torch.Tensor] = lambda parts: parts.gates.softmax(-1)  # noqa: E731
    RULES.register("mine", weights)
    RULES.register("fitted", weights, shares="data")
    RULES.register("heads", weights, form="standalone", keeps_base=False)
    try:
        assert [shares(name, WITH) for name in ("mine", "fitted", "heads")] == ["sums", "data", "nothing"]
        assert [shares(name, WITHOUT) for name in ("mine", "fitted", "heads")] == ["nothing", "data", "nothing"]
        with pytest.raises(RedxError, match="shares"):
            RULES.register("wrong", weights, shares="all")
    finally:
        for name in ("mine", "fitted", "heads"):
            RULES.unregister(name)


def test_rules_on_both_bases_are_listed_only_where_both_exist() -> None:
    assert set(rules_of_run(WITH, WITH.banks)) == {*RULES, "base/shared"}
    assert set(rules_of_run(WITHOUT, WITHOUT.banks)) == set(RULES) - {"statistics"}
    banks = {bank_id: bank for bank_id, bank in WITH.banks.items() if not bank.on_shared}
    assert set(rules_of_run(WITH, banks)) == set(RULES)
    anchored = WITH.banks[BankId("residual", "anchored")]
    alone = WITH.model_copy(update={"banks": {BankId("residual", "alone"): on_shared(anchored)}})
    assert shares("red/alone", alone) == "nothing"
    assert "base/alone" in rules_of_run(alone, alone.banks)


def on_shared(bank: BankConfig) -> BankConfig:
    return bank.model_copy(update={"on_shared": True})


def test_a_rule_that_needs_statistics_is_refused_without_them() -> None:
    check_rule("statistics", True)
    check_rule("red/anything", False)
    with pytest.raises(RedxError, match="ask 'base'"):
        check_rule("statistics", False)
    with pytest.raises(RedxError, match="'base/shared'"):
        check_rule("statistics/shared", True)
    with pytest.raises(RedxError, match="no rule"):
        check_rule("no such rule", True)


def test_the_base_of_a_bank_is_the_one_that_this_bank_corrects() -> None:
    from redx.composition.evaluation import evaluate

    own, other = draw_parts(40, 3, 4, 0), draw_parts(40, 3, 4, 1)
    banks = {BankId("residual", "plain"): own, BankId("residual", "shared"): other}
    rows = evaluate(banks, task="t", seed=0, domains=("a", "b", "c"), rules=["base", "base/shared", "base/plain"])
    found = {
        row["bank"]: row["value"]
        for row in rows
        if (row["metric"], row["domain"], row["noise"]) == ("accuracy", "all", "none")
    }
    right = {
        "": own.base.argmax(-1) == own.labels,
        "plain": own.base.argmax(-1) == own.labels,
        "shared": other.base.argmax(-1) == other.labels,
    }
    assert found == {name: pytest.approx(float(one.double().mean())) for name, one in right.items()}


def test_figures_get_what_owners_share() -> None:
    figures = {"red": {"help": 0.5}, "red/shared": {"help": 0.25}}
    assert with_shares(figures, WITH) == {
        "red": {"help": 0.5, "shares": "sums"},
        "red/shared": {"help": 0.25, "shares": "nothing"},
    }
