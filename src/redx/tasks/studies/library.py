"""What becomes of a model as experts come and go: added one by one, left out, trained later; and who routes them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition import noise, rules
from redx.composition.evaluation import noisy_weights, predict
from redx.composition.parts import Parts
from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.models.composed import Model
from redx.models.library import ExpertLibrary
from redx.report.content import Study, Table
from redx.seeding import generator
from redx.training import datasets, features
from redx.training.experts import train_experts

NOISES = (("swap", 0.5), ("swap", 1.0), ("jitter", 0.5), ("drop", 0.5), ("permute", 1.0))
RED = rules.get_rule("red")


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], train: bool = True) -> Study:
    """The open-set router beside the trained one; experts that come one by one; experts that are trained later."""
    tests = {seed: features.embed_split(config, models[seed].base, data[seed].test) for seed in config.seeds}
    first = config.seeds[0]
    facts: dict[str, Any] = {}
    tables = []
    if config.router.is_trained:
        table, facts["routers"] = compare(models, tests)
        tables.append(table)
    table, facts["one_by_one"] = grow(models, tests)
    tables.append(table)
    if train and config.study == "full":
        table, facts["later"] = train_later(config, data[first], models[first], tests[first], first)
        tables.append(table)
    return Study({"library": facts}, tuple(tables))


def see(model: Model, test: Split, router: str = "keys") -> Parts:
    """The test split for the main residual bank, by one of the routers."""
    with model.using("red", router=router):
        return model.parts_of(test.inputs, model.rule_and_bank()[1], test.labels, model.expert_index(test.domains))


def accuracy(parts: Parts, weights: Tensor | None = None) -> float:
    said = predict(RED, parts, RED.weights(parts) if weights is None else weights)
    return float((said == parts.labels).double().mean())


def compare(models: dict[int, Model], tests: dict[int, Split]) -> tuple[Table, dict[str, Any]]:
    """The trained router and the experts' own scores, clean and under noise: means over the seeds."""
    found: dict[str, dict[str, float]] = {}
    for name, router in {"trained router": "router", "keys": "keys"}.items():
        figures: dict[str, list[float]] = {}
        for seed, model in models.items():
            parts = see(model, tests[seed], router)
            figures.setdefault("clean", []).append(accuracy(parts))
            figures.setdefault("first choice", []).append(
                float((parts.gates.argmax(-1) == parts.domains).double().mean())
            )
            for kind, level in NOISES:
                noisy = noisy_weights(RED, parts, noise.get_noise(kind), level, generator(seed, "noise", kind, level))
                figures.setdefault(f"{kind} {level:g}", []).append(accuracy(parts, noisy))
        found[name] = {figure: sum(values) / len(values) for figure, values in figures.items()}
    columns = ("router", *next(iter(found.values())))
    note = (
        "Rule `red`, main bank, means over the seeds. `keys` is a softmax over the experts' own ownership scores: "
        "nothing is trained on pooled data, and experts come and go without retraining."
    )
    rows = tuple((name, *figures.values()) for name, figures in found.items())
    return Table("The open-set router", columns, rows, note), found


def grow(models: dict[int, Model], tests: dict[int, Split]) -> tuple[Table, dict[str, Any]]:
    """Experts added one after the other to an empty library, in several orders."""
    rows, facts = [], {}
    for seed, model in models.items():
        names = list(model.experts.names)
        shuffled = [names[place] for place in torch.randperm(len(names), generator=generator(seed, "order")).tolist()]
        ends, costs = [], []
        for order in (names, names[::-1], shuffled):
            curve, end = _add(model, tests[seed], order)
            ends.append(end)
            costs.append(max(before - after for before, after in itertools.pairwise(curve)))
            if order is names:
                rows.append((str(seed), *curve))
        same = all(torch.equal(ends[0], end) for end in ends[1:])
        facts[str(seed)] = {"accuracy": list(rows[-1][1:]), "largest_cost": max(costs), "same_end": same}
    counts = range(len(rows[0]) - 1)
    worst = max(found["largest_cost"] for found in facts.values())
    same = all(found["same_end"] for found in facts.values())
    note = (
        f"Rule `red` with `keys`. In three orders a seed, the step that cost most took {max(worst, 0):.4f}; the "
        f"outputs at the end {'do not depend on the order, bit for bit' if same else 'DEPEND on the order'}."
    )
    columns = ("seed", *(f"{count} expert{'s' * (count > 1)}" if count else "base" for count in counts))
    return Table("Experts added one by one", columns, tuple(rows), note), facts


def _add(model: Model, test: Split, order: Sequence[str]) -> tuple[list[float], Tensor]:
    """Accuracy after every expert, from none on, and the scores at the end."""
    whole = model.experts
    library = ExpertLibrary({}, whole.base, whole.banks, whole.ownership, lambda: whole.fingerprint)
    growing = dataclasses.replace(model, experts=library)
    curve, parts = [], see(growing, test)
    curve.append(accuracy(parts))
    for name in order:
        library.add(whole[name])
        parts = see(growing, test)
        curve.append(accuracy(parts))
    return curve, rules.compose(RED, parts, RED.weights(parts))


def train_later(config: RunConfig, data: Data, model: Model, test: Split, seed: int) -> tuple[Table, dict[str, Any]]:
    """Every expert in turn left out, trained alone later, and added back: accuracy before, without and after."""
    raw = datasets.select_shared(data, config, seed)
    train, shared = (
        features.embed_split(config, model.base, data.train),
        features.embed_shared(config, model.base, raw, seed),
    )
    choose, _ = datasets.split_validation(data, config.ownership.calibration, seed)
    check = features.embed_split(config, model.base, data.validation).only(choose)
    needed, model = _narrow(config, model)
    rows, facts = [], {}
    before = see(model, test)
    for lesson in datasets.expert_datasets(data.domains, train, shared, check):
        mine = before.domains == model.experts.names.index(lesson.name)
        with model.experts.changing() as library:
            old = library.remove(lesson.name)
            without = see(model, test)
            (new,) = train_experts(needed, [lesson], model.base, seed, data.unit, data.classes, library.fingerprint)
            library.add(new)
            after = see(model, test)
        figures = [accuracy(parts) for parts in (before, without, after)]
        own = [accuracy(parts.only(mine.nonzero()[:, 0])) for parts in (before, without, after)]
        same = torch.equal(before.residuals, after.residuals) and old is not new
        rows.append((lesson.name, *figures, *own, "yes" if same else "no"))
        facts[lesson.name] = {"before": figures[0], "without": figures[1], "after": figures[2], "same_bits": same}
    columns = ("expert", "before", "without", "after", "own: before", "own: without", "own: after", "same bits")
    note = "First seed, rule `red` with `keys`; the expert that is trained later knows the base and the shared subset."
    return Table("Left out, trained later, added back", columns, tuple(rows), note), facts


def _narrow(config: RunConfig, model: Model) -> tuple[RunConfig, Model]:
    """Settings and model with the main residual bank alone: what `red` needs of an expert."""
    main, whole = config.main_bank("residual"), model.experts
    banks = {bank_id: config.banks[bank_id] for bank_id in dict.fromkeys((config.trained_as(main), main))}
    experts = {name: whole[name] for name in whole.names}
    library = ExpertLibrary(experts, whole.base, banks, whole.ownership, lambda: whole.fingerprint)
    return config.model_copy(update={"banks": banks}), dataclasses.replace(model, experts=library, fixed={})


def has_keys(config: RunConfig) -> bool:
    """Whether the experts of a run bring ownership scores and corrections."""
    main = config.main_bank("residual")
    return main in config.banks and config.banks[main].owned
