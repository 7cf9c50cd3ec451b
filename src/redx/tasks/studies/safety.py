"""The study of safety: accuracy against α, false activations, plain against anchored experts, joint training."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from redx.composition import certificate, noise, rules
from redx.composition.evaluation import Banks, certify, noisy_weights, predict
from redx.composition.metrics import wilson_interval
from redx.composition.parts import Parts
from redx.config import BankId, RunConfig
from redx.data.dataset import Data
from redx.models.banks import run_bank
from redx.models.composed import Model
from redx.models.ownership import false_activation_rate
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.seeding import generator
from redx.tasks.studies import library, risk
from redx.training import features
from redx.training.banks import train_jointly

ALPHAS = (0.1, 0.03, 0.01, 0.003, 0.001)
PLAIN, ANCHORED = BankId("residual", "plain"), BankId("residual", "anchored")
OWN_ACTIVE = "own expert speaks"  # the key in summary.json: share of examples on which the own expert is active

Curve = dict[str, dict[str, float]]  # figures by α


def study(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks], train: bool = True
) -> Study:
    """Return the results of every seed; experiments that train something, if `train`, are of the first seed alone."""
    facts: dict[str, Any] = {"seeds": list(config.seeds)}
    priced = risk.study(config, models, parts)
    facts |= priced.facts
    tables, figures = list(priced.tables), list(priced.figures)
    if any(bank.owned for bank in config.banks.values()):
        curve = price_of_safety(config, data, models, parts)
        activations, facts["out_of_turn"] = false_activations(config, data, models)
        facts["price_of_safety"] = curve
        tables += [_price_table(curve), activations]
        figures.append(
            _price_figure(curve, _mean_accuracy(config, parts, "base"), _mean_accuracy(config, parts, "global"))
        )
    tables.append(compare_forms(parts))
    first = config.seeds[0]
    if train and PLAIN in models[first].banks and config.router.is_trained:
        joint, facts["integration"] = joint_training(config, data[first], models[first], parts[first], first)
        tables.append(joint)
    if library.has_keys(config):
        changes = library.study(config, data, models, train)
        facts, tables = facts | changes.facts, [*tables, *changes.tables]
    return Study(facts, tuple(tables), tuple(figures))


def accuracy(name: str, parts: Parts, weights: Tensor | None = None) -> float:
    """Return the accuracy of a rule, with its own weights or with these, (N, K)."""
    rule = rules.get_rule(name)
    predicted = predict(rule, parts, rule.weights(parts) if weights is None else weights)
    return float((predicted == parts.labels).double().mean())


def certified_accuracy(name: str, parts: Parts) -> float:
    """Return the accuracy of a rule against the worst router (ε = 1)."""
    certified = certify(rules.get_rule(name), parts)
    return certificate.certified_accuracy(certified.radius, certified.predicted == parts.labels, 1.0)


def swapped_accuracy(name: str, parts: Parts, seed: int) -> float:
    """Return the accuracy of a rule where every example is sent to a wrong expert."""
    draw = generator(seed, "noise", "swap", 1.0)
    return accuracy(name, parts, noisy_weights(rules.get_rule(name), parts, noise.get_noise("swap"), 1.0, draw))


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


def price_of_safety(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]
) -> Curve:
    """Return clean and certified accuracy of anchored experts with cut-offs at every α: means over the seeds."""
    curve: Curve = {}
    for alpha in ALPHAS:
        by_seed: dict[str, list[float]] = {}
        for seed, model in models.items():
            active = active_experts(config, data[seed], model, alpha)
            uncut = parts[seed][ANCHORED]
            cut = dataclasses.replace(uncut, residuals=uncut.residuals * active[..., None])
            own = rules.get_rule("red-oracle").weights(cut).bool()  # (N, K)
            figures = {
                "clean": accuracy("red", cut),
                "sum": accuracy("sum", cut),
                "swap": swapped_accuracy("red", cut, seed),
                "certified": certified_accuracy("red", cut),
                OWN_ACTIVE: float((active & own).any(1).double().mean()),
            }
            for name, value in figures.items():
                by_seed.setdefault(name, []).append(value)
        curve[f"{alpha:g}"] = {name: sum(values) / len(values) for name, values in by_seed.items()}
    return curve


def active_experts(config: RunConfig, data: Data, model: Model, alpha: float) -> Tensor:
    """Return which experts are active on which test examples, with cut-offs at α: (N, K)."""
    return model.experts.active(features.embed_split(config, model.base, data.test).inputs, alpha)


def _price_table(curve: Curve) -> Table:
    names = next(iter(curve.values()))
    columns = ("α", *("own expert active" if name == OWN_ACTIVE else name for name in names))
    rows = tuple((alpha, *figures.values()) for alpha, figures in curve.items())
    note = "Anchored residual experts with cut-offs at α; certified is ε = 1, the worst router there could be."
    return Table("The price of safety", columns, rows, note)


def _price_figure(curve: Curve, base: float, pooled: float | None) -> Figure:
    alphas = tuple(map(float, curve))
    titles = {"clean": "clean", "sum": "sum, no router", "swap": "always a wrong expert", "certified": "worst router"}
    lines = [Line(title, alphas, tuple(figures[name] for figures in curve.values())) for name, title in titles.items()]
    lines.append(Line("base", alphas, (base,) * len(alphas), dashed=True))
    if pooled is not None:
        lines.append(Line("global", alphas, (pooled,) * len(alphas), dashed=True))
    axis = "α: activity outside the own domain"
    panel = Panel("The price of safety", axis, "accuracy", tuple(lines), log_x=True)
    return Figure("price-of-safety", "The price of safety: clean and certified accuracy against α.", (panel,))


def _mean_accuracy(config: RunConfig, parts: dict[int, Banks], rule: str) -> float:
    """Return the accuracy of `base` or `global`, the mean over the seeds that have its bank."""
    bank_id = {"base": ANCHORED, "global": config.main_bank("pooled")}[rule]
    shares = [accuracy(rule, banks[bank_id]) for banks in parts.values() if bank_id in banks]
    return sum(shares) / max(1, len(shares))


def false_activations(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model]
) -> tuple[Table, dict[str, Any]]:
    """Return how often every expert is active on test examples of other domains, with the bound α."""
    rows, facts = [], {}
    owners = {seed: model.expert_index(data[seed].test.domains) for seed, model in models.items()}
    first = config.seeds[0]
    names = models[first].experts.names
    outside = [int((owners[first] != index).sum()) for index in range(len(names))]
    for alpha in (0.01, 0.003, 0.001):
        rates = [
            false_activation_rate(active_experts(config, data[seed], model, alpha), owners[seed])
            for seed, model in models.items()
        ]
        mean = torch.stack(rates).mean(0).tolist()
        rows.append((f"{alpha:g}", *mean, sum(mean) / len(mean)))
        low = [wilson_interval(rate, count)[0] for rate, count in zip(mean, outside, strict=True)]
        facts[f"{alpha:g}"] = {
            "per_expert": dict(zip(names, mean, strict=True)),
            "within_sampling_error": all(bound <= alpha for bound in low),
        }
    note = "Share of test examples outside its domain on which an expert is active; the bound is α on average."
    return Table("False activations", ("α", *names, "mean"), tuple(rows), note, place="stability"), facts


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
