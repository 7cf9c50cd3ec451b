"""The study of the library: the two routers, experts added one by one, experts removed and trained again later."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition import noise, rules
from redx.composition.evaluation import predict
from redx.composition.parts import Parts
from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.model.model import Model
from redx.models.library import ExpertLibrary
from redx.report.content import Study, Table
from redx.seeding import generator
from redx.training import datasets, features
from redx.training.experts import train_experts

NOISES = (("swap", 0.5), ("swap", 1.0), ("jitter", 0.5), ("drop", 0.5), ("permute", 1.0))
RED = rules.get_rule("red")


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], train: bool = True) -> Study:
    """Return the results of every seed; experts that are trained again, if `train`, are of the first seed alone."""
    tests = {seed: features.embed_split(config, models[seed].base, data[seed].test) for seed in config.seeds}
    first = config.seeds[0]
    facts: dict[str, Any] = {}
    tables = []
    if config.router.is_trained:
        table, facts["routers"] = compare_routers(models, tests)
        tables.append(table)
    table, facts["one_by_one"] = add_one_by_one(models, tests)
    tables.append(table)
    if train and config.study == "full":
        table, facts["later"] = train_again(config, data[first], models[first], tests[first], first)
        tables.append(table)
    return Study({"library": facts}, tuple(tables))


def has_keys(config: RunConfig) -> bool:
    """Return whether the experts of a run have ownership scores and corrections."""
    main = config.main_bank("residual")
    return main in config.banks and config.banks[main].controlled


def compute_parts(model: Model, test: Split, router: str = "keys") -> Parts:
    """Return the parts of the test split for the main residual bank, with the gates of this router."""
    with model.using("red", router=router):
        return model.parts_of(test.inputs, model.rule_and_bank()[1], test.labels, model.expert_index(test.domains))


def accuracy(parts: Parts, weights: Tensor | None = None) -> float:
    """Return the accuracy of `red`, with its own weights or with these, (N, K)."""
    predicted = predict(RED, parts, RED.weights(parts) if weights is None else weights)
    return float((predicted == parts.true_labels()).double().mean())


def compare_routers(models: dict[int, Model], tests: dict[int, Split]) -> tuple[Table, dict[str, Any]]:
    """Return figures of the trained router and of `keys`, clean and under noise: means over the seeds."""
    facts: dict[str, dict[str, float]] = {}
    for title, router in {"trained router": "router", "keys": "keys"}.items():
        by_seed: dict[str, list[float]] = {}
        for seed, model in models.items():
            parts = compute_parts(model, tests[seed], router)
            top = parts.gates.argmax(-1)
            figures = {"clean": accuracy(parts), "first choice": float((top == parts.domains).double().mean())}
            for kind, level in NOISES:
                noisy = noise.noisy_weights(RED, parts, kind, level, generator(seed, "noise", kind, level))
                figures[f"{kind} {level:g}"] = accuracy(parts, noisy)
            for name, value in figures.items():
                by_seed.setdefault(name, []).append(value)
        facts[title] = {name: sum(values) / len(values) for name, values in by_seed.items()}
    columns = ("router", *next(iter(facts.values())))
    note = (
        "Rule `red`, main bank, means over the seeds. `keys` is a softmax over the experts' own ownership scores: "
        "nothing is trained on pooled data, and experts are added and removed without retraining."
    )
    rows = tuple((title, *figures.values()) for title, figures in facts.items())
    return Table("The open-set router", columns, rows, note, place="modularity"), facts


def add_one_by_one(models: dict[int, Model], tests: dict[int, Split]) -> tuple[Table, dict[str, Any]]:
    """Return the accuracy as experts are added one by one to an empty library, in three orders per seed."""
    rows, facts = [], {}
    for seed, model in models.items():
        names = list(model.experts.names)
        shuffled = [names[index] for index in torch.randperm(len(names), generator=generator(seed, "order")).tolist()]
        outputs, costs = [], []
        for order in (names, names[::-1], shuffled):
            curve, scores = accuracy_curve(model, tests[seed], order)
            outputs.append(scores)
            costs.append(max(before - after for before, after in itertools.pairwise(curve)))
            if order is names:
                rows.append((str(seed), *curve))
        same = all(torch.equal(outputs[0], scores) for scores in outputs[1:])
        facts[str(seed)] = {"accuracy": list(rows[-1][1:]), "largest_cost": max(costs), "same_end": same}
    counts = range(len(rows[0]) - 1)
    worst = max(figures["largest_cost"] for figures in facts.values())
    same = all(figures["same_end"] for figures in facts.values())
    note = (
        f"Rule `red` with `keys`. Over three orders per seed, no expert lowers the accuracy by more than "
        f"{max(worst, 0):.4f} when it is added; the final outputs "
        f"{'do not depend on the order, bit for bit' if same else 'DEPEND on the order'}."
    )
    columns = ("seed", *(f"{count} expert{'s' * (count > 1)}" if count else "base" for count in counts))
    return Table("Experts added one by one", columns, tuple(rows), note, place="modularity"), facts


def accuracy_curve(model: Model, test: Split, order: Sequence[str]) -> tuple[list[float], Tensor]:
    """Return the accuracy with 0, 1, … experts, added in this order, and the scores of all of them, (N, C)."""
    whole = model.experts
    library = ExpertLibrary({}, whole.base, whole.banks, whole.ownership, lambda: whole.fingerprint)
    growing = model.with_experts(library)
    parts = compute_parts(growing, test)
    curve = [accuracy(parts)]
    for name in order:
        library.add(whole[name])
        parts = compute_parts(growing, test)
        curve.append(accuracy(parts))
    return curve, rules.compose(RED, parts, RED.weights(parts))


def train_again(config: RunConfig, data: Data, model: Model, test: Split, seed: int) -> tuple[Table, dict[str, Any]]:
    """Remove every expert in turn, train it without the others, add it back, and return the accuracies."""
    splits = features.embed_splits(config, model.base, data, seed)
    config, model = _main_bank_only(config, model)
    rows, facts = [], {}
    before = compute_parts(model, test)
    for dataset in datasets.expert_datasets(data.domains, splits.train, splits.anchors, splits.validation):
        own_rows = (before.domains == model.experts.names.index(dataset.name)).nonzero()[:, 0]
        with model.experts.changing() as library:
            old = library.remove(dataset.name)
            without = compute_parts(model, test)
            (new,) = train_experts(config, [dataset], model.base, seed, data.unit, data.classes, library.fingerprint)
            library.add(new)
            after = compute_parts(model, test)
        overall = [accuracy(parts) for parts in (before, without, after)]
        own = [accuracy(parts.only(own_rows)) for parts in (before, without, after)]
        same = torch.equal(before.residuals, after.residuals) and old is not new
        rows.append((dataset.name, *overall, *own, "yes" if same else "no"))
        facts[dataset.name] = {"before": overall[0], "without": overall[1], "after": overall[2], "same_bits": same}
    columns = ("expert", "before", "without", "after", "own: before", "own: without", "own: after", "same bits")
    note = "First seed, rule `red` with `keys`; an expert that is trained later needs the base and the shared subset."
    return Table("Left out, trained later, added back", columns, tuple(rows), note, place="modularity"), facts


def _main_bank_only(config: RunConfig, model: Model) -> tuple[RunConfig, Model]:
    """Return settings and model with the main residual bank alone, which is what `red` needs of an expert."""
    main, whole = config.main_bank("residual"), model.experts
    banks = {bank_id: config.banks[bank_id] for bank_id in dict.fromkeys((config.trained_as(main), main))}
    experts = {name: whole[name] for name in whole.names}
    library = ExpertLibrary(experts, whole.base, banks, whole.ownership, lambda: whole.fingerprint)
    return config.model_copy(update={"banks": banks}), model.with_experts(library, fixed={})
