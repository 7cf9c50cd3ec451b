"""The study of arithmetic in words: the study of safety, and how often the frozen blocks have to run."""

from __future__ import annotations

from itertools import product

from redx.composition.evaluation import Banks
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.model.model import Model
from redx.report.content import Study, Table
from redx.tasks.studies import safety
from redx.training.passes import count_passes

RULES = ("red", "red/anchored", "sum", "moe", "uniform", "base", "global")


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return the study of safety with a count of forward passes, and for `ops` the accuracy on every single step."""
    shared = safety.study(config, data, models, parts)
    passes = count_passes(config, data[config.seeds[0]])
    facts, tables = shared.facts | {"passes": passes}, list(shared.tables)
    if config.task == "ops":
        accuracies = step_accuracy(models)
        facts |= {"single_steps": accuracies}
        note = f"All {len(all_steps())} additions and subtractions of 1 to 50 with a result of 2 to 100."
        tables.insert(
            0,
            Table("Every step of a chain", ("rule", "accuracy"), tuple(accuracies.items()), note, place="performance"),
        )
    return Study(facts, tuple(tables), shared.figures)


def all_steps() -> list[tuple[str, int]]:
    """Return every question that a step of a chain can be, with its answer."""
    steps = []
    for first, second in product(range(1, 51), repeat=2):
        steps += [
            (f"What is {first} plus {second}?", first + second),
            (f"What is {first} minus {second}?", first - second),
        ]
    return [(text, answer) for text, answer in steps if 2 <= answer <= 100]


def step_accuracy(models: dict[int, Model]) -> dict[str, float]:
    """Return the accuracy of every rule on all steps, the mean over the seeds."""
    texts, truth = zip(*all_steps(), strict=True)
    shares: dict[str, list[float]] = {}
    for model in models.values():
        for rule in RULES:
            with model.using(rule):
                predicted = model.predict(texts)
            correct = sum(int(answer) == true for answer, true in zip(predicted, truth, strict=True))
            shares.setdefault(rule, []).append(correct / len(truth))
    return {rule: sum(by_seed) / len(by_seed) for rule, by_seed in shares.items()}
