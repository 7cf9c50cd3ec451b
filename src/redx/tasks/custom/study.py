"""What a run reports about a user's data: sizes of the domains, and unseen labels."""

from __future__ import annotations

from typing import Any

import torch

from redx.composition import rules
from redx.composition.evaluation import Banks, predict
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.model.model import Model
from redx.report.content import Study, Table
from redx.tasks.studies import risk

Row = tuple[str | float | int | None, ...]


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return facts about the data of every seed, and a table of the first seed's domains."""
    first = config.seeds[0]
    unseen = [unseen_label_share(splits) for splits in data.values()]
    facts: dict[str, Any] = {
        "seeds": list(config.seeds),
        "labels": len(data[first].classes),
        "unseen_labels_in_test": sum(unseen) / len(unseen),
    }
    rows = domain_rows(config, data[first], parts[first])
    note = ""
    if facts["unseen_labels_in_test"]:
        note = f"{facts['unseen_labels_in_test']:.1%} of test has a label that is not in train, and counts as wrong."
    columns = ("domain", "train", "validation", "test", "labels", "base", "composed")
    own = Study(facts, (Table(f"Domains (seed {first})", columns, tuple(rows), note, place="performance"),))
    return risk.merge(own, risk.study(config, models, parts))


def unseen_label_share(data: Data) -> float:
    """Return the share of the test examples whose label does not occur in train."""
    return float((~torch.isin(data.test.labels, data.train.labels)).double().mean())


def domain_rows(config: RunConfig, data: Data, banks: Banks) -> list[Row]:
    """Return a row per domain: sizes and accuracies."""
    residual = config.main_bank("residual")
    bank_id = residual if residual in banks else config.main_bank("standalone")
    parts = banks[bank_id]
    rule = rules.get_rule("red" if bank_id == residual else "moe")
    base_correct = parts.base.argmax(-1) == parts.true_labels()
    composed_correct = predict(rule, parts, rule.weights(parts)) == parts.true_labels()
    rows: list[Row] = []
    for index, name in enumerate(data.domains):
        counts = [int((split.domains == index).sum()) for split in (data.train, data.validation, data.test)]
        labels = len(data.train.labels[data.train.domains == index].unique())
        inside = parts.domains == index
        accuracies = [
            float(correct[inside].double().mean()) if bool(inside.any()) else None
            for correct in (base_correct, composed_correct)
        ]
        rows.append((name, *counts, labels, *accuracies))
    return rows
