"""Settings, summaries and studies of runs that were never run, for reports."""

from __future__ import annotations

import re
from typing import Any

from helpers.parts import draw_parts
from redx.composition.evaluation import Banks, evaluate
from redx.composition.summary import SCHEMA, summarise
from redx.config import BankConfig, BankId, RunConfig
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.runs.facts import compare_answers
from redx.runs.parts import StoredParts

DOMAINS = ("low", "middle", "high")
STUDY = Study(
    {"answer": 42},
    (Table("Mixing", ("case", "share", "count"), (("one", 0.5, 3), ("two", None, 4)), "A note."),),
    (
        Figure(
            "curves", "Curves.", (Panel("left", "x", "y", (Line("truth", (1, 10), (0, 1), dashed=True),), log_x=True),)
        ),
        Figure("surface", "A surface.", (Panel("error", "a", "b", grid=((0, 1), (2, 3)), extent=(0, 1, 0, 1)),)),
    ),
)


def make_config(**changes: Any) -> RunConfig:
    """Return the settings of a run with two residual banks and one standalone bank."""
    banks = {
        "residual/plain": BankConfig(shape="mlp"),
        "residual/anchored": BankConfig(shape="mlp"),
        "standalone/linear": BankConfig(shape="linear"),
    }
    main = {"residual": "anchored", "standalone": "linear", "pooled": "linear"}
    return RunConfig.model_validate({"task": "toy", "preset": "quick", "banks": banks, "main": main, **changes})


def make_summary(
    config: RunConfig,
    forms: tuple[str, ...] = ("residual", "standalone", "pooled"),
    classes: int = 4,
    facts: bool = False,
) -> dict[str, Any]:
    """Return the summary that a run over random parts would write; with `facts`, all that newer versions add."""
    banks: Banks = {}
    for seed, bank_id in enumerate(config.banks):
        if bank_id.form in forms:
            banks[bank_id] = draw_parts(40, 3, classes, seed)
    if "pooled" in forms:
        banks[BankId("pooled", "linear")] = draw_parts(40, 1, classes)
    rows = evaluate(
        banks, task=config.task, seed=0, domains=DOMAINS, kinds=config.noise, levels=(0, 0.5, 1), epsilons=(0, 0.5, 1)
    )
    newer = compare_answers(config, {0: StoredParts(banks, DOMAINS)}, ["digest"]) if facts else {}
    return newer | {
        "schema": SCHEMA,
        "data": {"train": 100, "validation": 10, "test": 40, "split": "disjoint", "seen_in_train": 0.0},
        "domains": list(DOMAINS),
        "rules": summarise(rows, config.main, 40),
        "router": {"accuracy": 0.5},
        "cost": {"seconds": {"experts": 1.5, "total": 1.5}, "peak_memory_mb": 500.2, "parameters": {"base": 1234}},
    }


def check_tables(text: str) -> None:
    """Check that all rows of every Markdown table have as many cells as its head."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
