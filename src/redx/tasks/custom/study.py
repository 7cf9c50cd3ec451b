"""What a run on a user's own data should tell about them: sizes, unseen labels, and experts that cannot speak yet."""

from __future__ import annotations

from typing import Any

import torch

from redx.composition import rules
from redx.composition.evaluation import Banks, predict
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.models.composed import Model
from redx.report.content import Study, Table
from redx.training.datasets import split_validation


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Facts about the data of every seed, and a table of the first seed's domains."""
    first = config.seeds[0]
    unseen = [unseen_share(each) for each in data.values()]
    facts: dict[str, Any] = {
        "seeds": list(config.seeds),
        "labels": len(data[first].classes),
        "unseen_labels_in_test": sum(unseen) / len(unseen),
    }
    rows = tabulate(config, data[first], parts[first])
    silent = [row[0] for row in rows if row[-1] == "no"]
    facts["silent_experts"] = silent
    note = f"An expert can speak when it has {needed(config)} or more calibration examples outside its domain (α)."
    if facts["unseen_labels_in_test"]:
        note += f" {facts['unseen_labels_in_test']:.1%} of test has a label that is not in train, and counts as wrong."
    columns = ("domain", "train", "validation", "test", "labels", "base", "composed", "calibration", "can speak")
    return Study(facts, (Table(f"Domains (seed {first})", columns, tuple(rows), note),))


def unseen_share(data: Data) -> float:
    """The share of test whose label train does not have."""
    return float((~torch.isin(data.test.labels, data.train.labels)).double().mean())


def needed(config: RunConfig) -> int:
    """Calibration examples without which a cut-off is infinite."""
    alpha, count = config.ownership.alpha, 0
    while (count + 1) * alpha < 1 - 1e-9:
        count += 1
    return count


def tabulate(config: RunConfig, data: Data, banks: Banks) -> list[tuple[str | float | int | None, ...]]:
    residual = config.main_bank("residual")
    bank_id = residual if residual in banks else config.main_bank("standalone")
    parts = banks[bank_id]
    rule = rules.get_rule("red" if bank_id == residual else "moe")
    base = parts.base.argmax(-1) == parts.labels
    composed = predict(rule, parts, rule.weights(parts)) == parts.labels
    held = data.validation.domains[split_validation(data, config.ownership.calibration, config.seeds[0])[1]]
    rows: list[tuple[str | float | int | None, ...]] = []
    for index, name in enumerate(data.domains):
        counts = [int((split.domains == index).sum()) for split in (data.train, data.validation, data.test)]
        labels = len(data.train.labels[data.train.domains == index].unique())
        here = parts.domains == index
        right = [float(found[here].double().mean()) if bool(here.any()) else None for found in (base, composed)]
        calibration = int((held != index).sum())
        rows.append((name, *counts, labels, *right, calibration, "yes" if calibration >= needed(config) else "no"))
    return rows
