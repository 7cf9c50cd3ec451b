"""The study of safety: risk control, plain against anchored experts, joint training, and changes of the library."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, noise, rules
from redx.composition.evaluation import Banks, certify, predict
from redx.composition.parts import Parts
from redx.config import BankId, RunConfig
from redx.data.dataset import Data
from redx.model.model import Model
from redx.models.banks import run_bank
from redx.report.content import Study, Table
from redx.seeding import generator
from redx.tasks.studies import library, risk
from redx.training import features
from redx.training.banks import train_jointly

PLAIN, ANCHORED = BankId("residual", "plain"), BankId("residual", "anchored")


def study(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks], train: bool = True
) -> Study:
    """Return the results of every seed; experiments that train something, if `train`, are of the first seed alone."""
    facts: dict[str, Any] = {"seeds": list(config.seeds)}
    priced = risk.study(config, models, parts)
    facts |= priced.facts
    tables = list(priced.tables)
    tables.append(compare_forms(parts))
    first = config.seeds[0]
    if train and PLAIN in models[first].banks and config.router.is_trained:
        joint, facts["integration"] = joint_training(config, data[first], models[first], parts[first], first)
        tables.append(joint)
    if library.has_keys(config):
        changes = library.study(config, data, models, train)
        facts, tables = facts | changes.facts, [*tables, *changes.tables]
    return Study(facts, tuple(tables), priced.figures)


def accuracy(name: str, parts: Parts, weights: Tensor | None = None) -> float:
    """Return the accuracy of a rule, with its own weights or with these, (N, K)."""
    rule = rules.get_rule(name)
    predicted = predict(rule, parts, rule.weights(parts) if weights is None else weights)
    return float((predicted == parts.true_labels()).double().mean())


def certified_accuracy(name: str, parts: Parts) -> float:
    """Return the accuracy of a rule against the worst router (ε = 1)."""
    certified = certify(rules.get_rule(name), parts)
    return certificate.certified_accuracy(certified.radius, certified.predicted == parts.true_labels(), 1.0)


def swapped_accuracy(name: str, parts: Parts, seed: int) -> float:
    """Return the accuracy of a rule where every example is sent to a wrong expert."""
    draw = generator(seed, "noise", "swap", 1.0)
    return accuracy(name, parts, noise.noisy_weights(rules.get_rule(name), parts, "swap", 1.0, draw))


def compare_forms(parts: dict[int, Banks]) -> Table:
    """Return a table of residual and standalone experts, plain and anchored: means over the seeds."""
    rows = []
    for bank_id, rule in (
        (BankId("standalone", "plain"), "moe"),
        (BankId("standalone", "anchored"), "moe"),
        (PLAIN, "red"),
        (ANCHORED, "red"),
    ):
        by_seed = [
            (
                accuracy(rule, banks[bank_id]),
                swapped_accuracy(rule, banks[bank_id], seed),
                certified_accuracy(rule, banks[bank_id]),
            )
            for seed, banks in parts.items()
            if bank_id in banks
        ]
        if by_seed:
            rows.append((*bank_id, *(sum(column) / len(by_seed) for column in zip(*by_seed, strict=True))))
    columns = ("experts", "training", "clean", "always a wrong expert", "any router (ε = 1)")
    note = "Standalone heads are mixed by `moe`, residual experts by `red`, with the same router; no cut-offs."
    return Table("Residual or standalone, plain or anchored", columns, tuple(rows), note, place="stability")


def joint_training(
    config: RunConfig, data: Data, model: Model, banks: Banks, seed: int
) -> tuple[Table, dict[str, Any]]:
    """Return what joint training of plain experts and router (stage 4) would change; `--integrate` adds it to a run."""
    train, test = (features.embed_split(config, model.base, split) for split in (data.train, data.test))
    training = config.banks[PLAIN].training
    assert model.router is not None
    bank, router = train_jointly(training, model.bank(PLAIN), model.router.network, model.base, train, seed)
    before = banks[PLAIN]
    with torch.no_grad():
        after = dataclasses.replace(before, residuals=run_bank(bank, test.inputs), gates=router(test.inputs))
    rows, facts = [], {}
    for name, parts in {"trained apart": before, "after joint training": after}.items():
        facts[name] = {"clean": accuracy("red", parts), "certified": certified_accuracy("red", parts)}
        rows.append((name, *facts[name].values()))
    columns = ("red", "clean", "certified ε=1")
    note = "Plain residual experts of the first seed; joint training needs the data of all domains together."
    return Table("What joint training would change (stage 4)", columns, tuple(rows), note, place="modularity"), facts
