"""Presets and changes to settings, and the command that repeats a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redx
from redx.config import BankId
from redx.errors import RedxError
from redx.runs.presets import configure, reproduce


def test_the_file_belongs_to_the_table_or_to_the_questions() -> None:
    ours, theirs = configure("jsonl", file="a.csv", label="topic"), configure("addition", file="a.jsonl")
    assert ours.table is not None
    assert (ours.table.file, ours.table.label, ours.questions.file) == ("a.csv", "topic", None)
    assert (theirs.table, theirs.questions.file) == (None, "a.jsonl")


def test_short_names_change_their_sections() -> None:
    config = configure("mixed", "quick", share=0.3, blocks=[4], trunk="sum", routing="linear", total=500)
    assert config.base.share == 0.3
    assert config.encoding.blocks == (4,)
    assert (config.base.trunk.shape, config.encoding.pooling, config.base.teach) == ("sum", "tokens", "value")
    assert config.router.shape == "linear"
    assert config.questions.total == 500


def test_epochs_and_batches_hold_for_their_stages() -> None:
    config = configure("features", "quick", epochs={"experts": 7}, batch=11)
    assert {bank.training.epochs for bank in config.banks.values()} == {7}
    assert config.ownership.bank.training.epochs == 7
    assert config.base.training.epochs == configure("features", "quick").base.training.epochs
    stages = [config.base, config.router, config.ownership.bank, *config.banks.values()]
    assert {stage.training.batch for stage in stages} == {11}


def test_none_leaves_a_setting_as_it_is() -> None:
    assert configure("toy", "quick", risk=None, limit=None) == configure("toy", "quick")


@pytest.mark.parametrize(("run", "forms"), [("red", {"residual", "pooled"}), ("moe", {"standalone", "pooled"})])
def test_the_banks_of_a_run_are_chosen_by_form(run: str, forms: set[str]) -> None:
    config = configure("features", "quick", run=run)
    assert {bank_id.form for bank_id in config.banks} == forms
    assert set(config.main) - {"averaged"} == forms


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("toy", {"run": "nothing"}, "choose one of red, moe, all"),
        ("toy", {"integrate": True}, "residual/plain, which this run lacks"),
        ("toy", {"text": "body"}, r"does not read the setting 'table\.text'; leave out --text"),
        ("toy", {"routing": "keys"}, "the experts of this run lack; choose mlp"),
        ("features", {"risk": 2}, "Setting 'risk' is not usable"),
        ("features", {"nonsense": 1}, "Task 'features' has no option 'nonsense'"),
        ("nothing", {}, "no task 'nothing'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(task: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        configure(task, **changes)


def test_the_command_repeats_a_run() -> None:
    changes: dict[str, Any] = {"seeds": [3, 4], "file": "my data.npz", "limit": 200, "share": 0.5, "clusters": 2}
    command, rest = reproduce(configure("features", "quick", **changes))
    assert command.startswith("redx run features --preset quick --seed 3 --seed 4")
    for words in ("--data 'my data.npz'", "--limit 200", "--share 0.5", "--clusters 2"):
        assert words in command
    assert rest == []


def test_settings_that_no_option_sets_are_listed() -> None:
    config = configure("toy", "quick")
    plain = next(bank_id for bank_id in config.banks if bank_id.form == "residual")
    banks = config.banks | {BankId("residual", "other"): config.banks[plain]}
    command, rest = reproduce(config.model_copy(update={"banks": banks}))
    assert command == "redx run toy --preset quick --seed 0"
    assert rest
    assert all(path.startswith("banks.residual/other.") for path in rest)
    assert reproduce(config.model_copy(update={"task": "unknown"}))[1] == []


def test_a_run_takes_its_budget_and_how_domains_are_kept() -> None:
    config = configure("intents", budget="routing", by="all", small="silent")
    assert (config.budget, config.by, config.small) == ("routing", "all", "silent")
    command, rest = reproduce(config)
    assert all(words in command for words in ("--budget routing", "--by all", "--small silent"))
    assert rest == []
    with pytest.raises(RedxError, match="budget"):
        configure("intents", budget="both")


def test_the_risk_by_domain_needs_domains_with_classes_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(RedxError, match="share classes"):
        redx.run("ops", "quick", out=tmp_path / "run", by="domain", total=400)
