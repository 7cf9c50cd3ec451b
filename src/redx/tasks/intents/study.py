"""What a run of `intents` measures besides accuracies: the price of risk, and out-of-scope queries."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from redx.composition.abstention import abstention_cutoff, class_means, familiarity
from redx.composition.evaluation import Banks
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.model.model import Model
from redx.report.content import Study, Table
from redx.tasks.custom import study as domains
from redx.tasks.intents.loading import out_of_scope
from redx.tasks.studies import risk
from redx.training.features import embed_split

RATES = (0.01, 0.05, 0.1)


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return the domains, the price of risk and the figures of abstention, means over the seeds."""
    return risk.merge(
        domains.study(config, data, models, parts),
        abstention(config, data, models),
    )


def abstention(config: RunConfig, data: dict[int, Data], models: dict[int, Model]) -> Study:
    """Return how well abstention separates out-of-scope from in-scope queries, at several rates of false abstention."""
    (queries,) = out_of_scope(config, ("test",))
    by_seed = [_figures(config, data[seed], model, queries) for seed, model in models.items()]
    figures = {name: sum(one[name] for one in by_seed) / len(by_seed) for name in by_seed[0]}
    rows = tuple(
        (f"{rate:g}", figures[f"false abstentions at {rate:g}"], figures[f"recall at {rate:g}"])
        for rate in RATES
        if f"recall at {rate:g}" in figures
    )
    note = (
        f"{len(queries)} queries of no intent against the test split. The score is the largest cosine similarity to "
        f"the mean features of an intent; AUROC {figures['auroc']:.4f}."
    )
    columns = ("rate that is promised", "in-scope queries refused", "out-of-scope queries found")
    facts: dict[str, Any] = {"abstention": figures}
    return Study(facts, (Table("Abstention", columns, rows, note, place="stability"),))


def _figures(config: RunConfig, data: Data, model: Model, queries: Tensor) -> dict[str, float]:
    assert model.anchor_data is not None
    assert model.calibration_set is not None
    model.base.encoder.prepare([queries])
    anchors, compared = model.anchor_data(), model.base.encoder.abstention_features
    means = class_means(anchors.inputs[:, compared], anchors.labels)
    held = familiarity(model.calibration_set().inputs[:, compared], means)
    inside = familiarity(embed_split(config, model.base, data.test).inputs[:, compared], means)
    outside = familiarity(model.base.embed(queries)[:, compared], means)
    known = torch.cat([torch.ones_like(inside), torch.zeros_like(outside)])
    figures = {"auroc": float(roc_auc_score(known, torch.cat([inside, outside])))}
    for rate in (rate for rate in RATES if rate * (len(held) + 1) >= 1):
        cutoff = abstention_cutoff(held, rate)
        figures[f"false abstentions at {rate:g}"] = float((inside < cutoff).double().mean())
        figures[f"recall at {rate:g}"] = float((outside < cutoff).double().mean())
    return figures
