"""The study of chains: from sentence to answer, certified chains, and which part caused the errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redx.composition.evaluation import Banks
from redx.composition.parts import predicted_classes
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.model.model import Model
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.tasks.arithmetic.chain_evaluation import EPSILONS, LENGTHS, PARTS, evaluate_chains
from redx.tasks.studies import safety


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """Return figures of chains, means over the seeds, and the study of safety without further training."""
    shared = safety.study(config, data, models, parts, train=False)
    count = (2000 if config.study == "full" else 200) // (
        16 if config.questions.decomposer == "lm" else 1
    )  # `lm` is slow
    by_seed = [evaluate_chains(model, seed, count) for seed, model in models.items()]
    names = ("accuracy", "language", "budget", "certified")
    accuracy, language, budget, certified = (_mean([figures[name] for figures in by_seed]) for name in names)
    facts = {
        "chains": dict(zip(names, (accuracy, language, budget, certified), strict=True)),
        "speed": _mean([figures["speed"] for figures in by_seed]),
        "steps": _base_accuracy(data, parts),
    }
    tables = (
        Table(
            "From sentence to answer",
            ("rule", *(f"{name} steps" for name in LENGTHS)),
            tuple((rule, *row.values()) for rule, row in accuracy.items()),
            f"Share of {count} plain sentences per length with a correct answer; the decomposer is trained on 1 to 4 "
            "steps.",
            place="performance",
        ),
        Table(
            "Language",
            ("sentences", "program correct", "answer correct (red)"),
            tuple((name, *row.values()) for name, row in language.items()),
            "Held-out templates have wordings, names and nouns that training does not use; 2 to 4 steps.",
            place="performance",
        ),
        Table(
            "Certified chains",
            ("steps", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)),
            tuple((name, *row.values()) for name, row in certified.items()),
            "Correct, and unchanged whatever share ε of the routing weight is moved at every step (red).",
            place="stability",
        ),
        Table(
            "Error budget",
            ("sentences", "wrong", *PARTS),
            tuple((name, *row.values()) for name, row in budget.items()),
            "A wrong answer is due to the first part whose replacement by its oracle corrects it: the program, then "
            "the router, then the rule (the step's own standalone expert answers); the rest is due to the expert.",
        ),
        Table(
            "Mistakes", ("sentence", "answer", "true answer", "due to", "weakest step"), tuple(by_seed[0]["mistakes"])
        ),
    )
    lines = tuple(Line(f"{name} steps", EPSILONS, tuple(row.values())) for name, row in certified.items())
    panel = Panel("Chains under any router", "ε", "certified chain accuracy", lines)
    caption = "Chains that stay correct whatever the router does with a share ε of its mass."
    figure = Figure("chains", caption, (panel,), place="stability")
    return Study(shared.facts | facts, (*tables, *shared.tables), (figure, *shared.figures))


def _base_accuracy(data: dict[int, Data], parts: dict[int, Banks]) -> dict[str, float]:
    """Return the accuracy of the base on single steps of the test split, by seed."""
    return {
        str(seed): float((predicted_classes(next(iter(banks.values())).base) == data[seed].test.labels).double().mean())
        for seed, banks in parts.items()
    }


def _mean(figures: Sequence[Any]) -> Any:
    """Return the mean of nested dictionaries of numbers."""
    if isinstance(figures[0], dict):
        return {name: _mean([values[name] for values in figures]) for name in figures[0]}
    return sum(figures) / len(figures)
