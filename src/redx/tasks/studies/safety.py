"""What MNIST shows beyond the rules: the price of safety, experts out of turn, and what joint training brings."""

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
from redx.tasks.studies import library
from redx.training import features
from redx.training.banks import train_jointly

ALPHAS = (0.1, 0.03, 0.01, 0.003, 0.001)


def study(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks], train: bool = True
) -> Study:
    """All findings, of every seed; those that `train` something, of the first alone."""
    facts: dict[str, Any] = {"seeds": list(config.seeds)}
    tables, figures = [], []
    if any(bank.owned for bank in config.banks.values()):
        curve = price(config, data, models, parts)
        silence, facts["out_of_turn"] = keep_silent(config, data, models)
        facts["price_of_safety"] = curve
        tables += [_price_table(curve), silence]
        figures.append(_price_figure(curve, _mean_of(parts, "base"), _mean_of(parts, "global")))
    tables.append(square(parts))
    if train and BankId("residual", "plain") in models[config.seeds[0]].banks and config.router.is_trained:
        first = config.seeds[0]
        joint, facts["integration"] = integrate(config, data[first], models[first], parts[first], first)
        tables.append(joint)
    if library.has_keys(config):
        moved = library.study(config, data, models, train)
        facts, tables = facts | moved.facts, [*tables, *moved.tables]
    return Study(facts, tuple(tables), tuple(figures))


def right_share(rule: str, parts: Parts, weights: Tensor | None = None) -> float:
    found = rules.get_rule(rule)
    said = predict(found, parts, found.weights(parts) if weights is None else weights)
    return float((said == parts.labels).double().mean())


def square(parts: dict[int, Banks]) -> Table:
    """Residual or standalone, plain or anchored: which of the two is it that makes experts safe?"""
    swap = noise.get_noise("swap")
    rows = []
    for bank_id, rule in (
        (BankId("standalone", "plain"), "moe"),
        (BankId("standalone", "anchored"), "moe"),
        (BankId("residual", "plain"), "red"),
        (BankId("residual", "anchored"), "red"),
    ):
        found = []
        for seed, banks in parts.items():
            if bank_id in banks:
                some, chosen = banks[bank_id], rules.get_rule(rule)
                noisy = noisy_weights(chosen, some, swap, 1.0, generator(seed, "noise", "swap", 1.0))
                judged = certify(chosen, some)
                worst = certificate.certified_accuracy(judged.radius, judged.predicted == some.labels, 1.0)
                found.append((right_share(rule, some), right_share(rule, some, noisy), worst))
        if found:
            rows.append((*bank_id, *(sum(column) / len(found) for column in zip(*found, strict=True))))
    columns = ("experts", "training", "clean", "always a wrong expert", "any router (ε = 1)")
    note = "Standalone heads are mixed by `moe`, residual experts by `red`, with the same router; no cut-offs."
    return Table("Residual or standalone, plain or anchored", columns, tuple(rows), note)


def price(
    config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]
) -> dict[str, dict[str, float]]:
    """Clean and certified accuracy against α, the mean over the seeds."""
    red, swap = rules.get_rule("red"), noise.get_noise("swap")
    curve: dict[str, dict[str, float]] = {}
    for alpha in ALPHAS:
        figures: dict[str, list[float]] = {}
        for seed, model in models.items():
            spoken = _spoken(config, data[seed], model, alpha)
            free = parts[seed][BankId("residual", "anchored")]
            bound = dataclasses.replace(free, residuals=free.residuals * spoken[..., None])
            judged = certify(red, bound)
            noisy = noisy_weights(red, bound, swap, 1.0, generator(seed, "noise", "swap", 1.0))
            found = {
                "clean": right_share("red", bound),
                "sum": right_share("sum", bound),
                "swap": right_share("red", bound, noisy),
                "certified": certificate.certified_accuracy(judged.radius, judged.predicted == bound.labels, 1.0),
                "own expert speaks": float(
                    (spoken & rules.get_rule("red-oracle").weights(bound).bool()).any(1).double().mean()
                ),
            }
            for name, value in found.items():
                figures.setdefault(name, []).append(value)
        curve[f"{alpha:g}"] = {name: sum(values) / len(values) for name, values in figures.items()}
    return curve


def _spoken(config: RunConfig, data: Data, model: Model, alpha: float) -> Tensor:
    return model.experts.active(features.embed_split(config, model.base, data.test).inputs, alpha)


def _price_table(curve: dict[str, dict[str, float]]) -> Table:
    columns = ("α", *next(iter(curve.values())))
    rows = tuple((alpha, *figures.values()) for alpha, figures in curve.items())
    note = "Anchored residual experts with cut-offs at α; certified is ε = 1, the worst router there could be."
    return Table("The price of safety", columns, rows, note)


def _price_figure(curve: dict[str, dict[str, float]], base: float, pooled: float | None) -> Figure:
    where = tuple(map(float, curve))
    names = {"clean": "clean", "sum": "sum, no router", "swap": "always a wrong expert", "certified": "worst router"}
    lines = [Line(told, where, tuple(found[name] for found in curve.values())) for name, told in names.items()]
    lines.append(Line("base", where, (base,) * len(where), dashed=True))
    if pooled is not None:
        lines.append(Line("global", where, (pooled,) * len(where), dashed=True))
    panel = Panel(
        "", "α, share of cases in which an expert may speak out of turn", "accuracy", tuple(lines), log_x=True
    )
    return Figure("price-of-safety", "The price of safety: clean and certified accuracy against α.", (panel,))


def _mean_of(parts: dict[int, Banks], rule: str) -> float:
    bank_id = {"base": BankId("residual", "anchored"), "global": BankId("pooled", "mlp")}[rule]
    shares = [right_share(rule, banks[bank_id]) for banks in parts.values() if bank_id in banks]
    return sum(shares) / max(1, len(shares))


def keep_silent(config: RunConfig, data: dict[int, Data], models: dict[int, Model]) -> tuple[Table, dict[str, Any]]:
    """How often each expert speaks out of turn on test, beside what was promised."""
    rows, facts = [], {}
    places = {seed: model.expert_index(data[seed].test.domains) for seed, model in models.items()}
    names = models[config.seeds[0]].experts.names
    outside = [int((places[config.seeds[0]] != index).sum()) for index in range(len(names))]
    for alpha in (0.01, 0.003, 0.001):
        shares = [
            false_activation_rate(_spoken(config, data[seed], model, alpha), places[seed])
            for seed, model in models.items()
        ]
        mean = torch.stack(shares).mean(0).tolist()
        rows.append((f"{alpha:g}", *mean, sum(mean) / len(mean)))
        low = [wilson_interval(share, count)[0] for share, count in zip(mean, outside, strict=True)]
        facts[f"{alpha:g}"] = {
            "per_expert": dict(zip(names, mean, strict=True)),
            "within_sampling_error": all(bound <= alpha for bound in low),
        }
    note = "Share of test examples outside its domain on which an expert speaks; promised: at most α on average."
    return Table("Speaking out of turn", ("α", *names, "mean"), tuple(rows), note), facts


def integrate(config: RunConfig, data: Data, model: Model, banks: Banks, seed: int) -> tuple[Table, dict[str, Any]]:
    """What stage 4 would bring, which needs all domains' data in one place; `--integrate` makes it part of a run."""
    train, test = (features.embed_split(config, model.base, split) for split in (data.train, data.test))
    plain = BankId("residual", "plain")
    training = config.banks[plain].training
    assert model.router is not None
    bank, router = train_jointly(training, model.bank(plain), model.router.network, model.base, train, seed)
    before = banks[plain]
    with torch.no_grad():
        after = dataclasses.replace(before, residuals=run_bank(bank, test.inputs), gates=router(test.inputs))
    rows, facts = [], {}
    for name, parts in {"trained apart": before, "after joint training": after}.items():
        judged = certify(rules.get_rule("red"), parts)
        worst = certificate.certified_accuracy(judged.radius, judged.predicted == parts.labels, 1.0)
        facts[name] = {"clean": right_share("red", parts), "certified": worst}
        rows.append((name, *facts[name].values()))
    note = "Plain residual experts of the first seed; joint training needs all domains' data in one place."
    return Table(
        "What joint training would bring (stage 4)", ("red", "clean", "certified ε=1"), tuple(rows), note
    ), facts
