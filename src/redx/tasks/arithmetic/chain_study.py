"""What chains show: from sentence to answer by rule and length, certified chains, and whose the mistakes are."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redx.composition.evaluation import Banks
from redx.composition.parts import predicted_classes
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.errors import RedxError
from redx.models.composed import Model
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.questions import make
from redx.tasks.arithmetic.sentences import render, sample
from redx.tasks.arithmetic.solver import Chain, Executor
from redx.tasks.studies import safety

LENGTHS = {"2": (2,), "3": (3,), "4": (4,), "5-8": (5, 6, 7, 8)}
STYLES = ("paraphrase", "story", "distractor")
RULES = ("red", "sum", "red-oracle", "moe", "uniform", "oracle", "base", "global")
EPSILONS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
SHOWN = 8  # mistakes that the report tells


@dataclass(frozen=True)
class Exam:
    """Sentences with the programs they should become."""

    texts: list[str]
    programs: list[Program]


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """The findings of `safety`, then chains: the mean over the seeds."""
    found = safety.study(config, data, models, parts, train=False)  # chains come first, in under two minutes
    count = (2000 if config.study == "full" else 200) // (16 if config.decomposer == "lm" else 1)  # it is slow
    seen = [examine(model, seed, count) for seed, model in models.items()]
    means = _mean([each["accuracy"] for each in seen])
    words = _mean([each["language"] for each in seen])
    budget = _mean([each["budget"] for each in seen])
    certified = _mean([each["certified"] for each in seen])
    names = {"accuracy": means, "language": words, "budget": budget, "certified": certified}
    facts = {"chains": names, "speed": _mean([each["speed"] for each in seen]), "steps": _every_step(data, parts)}
    tables = (
        Table(
            "From sentence to answer",
            ("rule", *(f"{name} steps" for name in LENGTHS)),
            tuple((rule, *row.values()) for rule, row in means.items()),
            f"Share of {count} plain sentences a length that are answered right; the decomposer has seen 1 to 4 steps.",
        ),
        Table(
            "Language",
            ("sentences", "program right", "answer right (red)"),
            tuple((name, *row.values()) for name, row in words.items()),
            "Held-out templates have frames, names and things that training never shows; 2 to 4 steps.",
        ),
        Table(
            "Certified chains",
            ("steps", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)),
            tuple((name, *row.values()) for name, row in certified.items()),
            "Right, and unchanged whatever share ε of the routing mass is moved at every step (red).",
        ),
        Table(
            "Error budget",
            ("sentences", "wrong", *PARTS),
            tuple((name, *row.values()) for name, row in budget.items()),
            "Every wrong answer is laid to the first part whose replacement by its oracle mends it: the program, then "
            "the router, then the rule (the step's own standalone expert answers); what is left is the expert's.",
        ),
        Table("Mistakes", ("sentence", "answer", "right", "due to", "weakest step"), tuple(seen[0]["mistakes"])),
    )
    lines = tuple(Line(f"{name} steps", EPSILONS, tuple(row.values())) for name, row in certified.items())
    panel = Panel("", "ε", "certified chain accuracy", lines)
    figure = Figure("chains", "Chains that stay right whatever the router does with a share ε of its mass.", (panel,))
    return Study(found.facts | facts, (*tables, *found.tables), (figure, *found.figures))


PARTS = ("decomposition", "routing", "composition", "expert")


def examine(model: Model, seed: int, count: int) -> dict[str, Any]:
    """One seed: all rules on plain chains, the language, certificates, and where mistakes come from."""
    assert model.decomposer is not None
    decomposer = model.decomposer()
    executors = {rule: Executor(model, rule) for rule in RULES if _has(model, rule)}
    exams = {name: plain(lengths, count, seed) for name, lengths in LENGTHS.items()}
    heard = {f"held-out {style}": held_out(style, count, seed) for style in STYLES}
    accuracy: dict[str, dict[str, float]] = {rule: {} for rule in executors}
    certified: dict[str, dict[str, float]] = {}
    language: dict[str, dict[str, float]] = {}
    budget: dict[str, dict[str, float]] = {}
    mistakes: list[tuple[Any, ...]] = []
    speed: dict[str, float] = {}
    for name, exam in (exams | heard).items():
        began = time.perf_counter()
        programs = decomposer.decompose(exam.texts)
        chains = _solve(executors["red"], programs)
        speed[name] = len(exam.texts) / (time.perf_counter() - began)
        right = [_right(chain, program) for chain, program in zip(chains, exam.programs, strict=True)]
        exact = [found == program for found, program in zip(programs, exam.programs, strict=True)]
        called = f"plain, {name} steps" if name in exams else name
        language[called] = {"program": _share(exact), "answer": _share(right)}
        if name in exams:
            for rule, executor in executors.items():
                solved = _solve(executor, programs)
                accuracy[rule][name] = _share([_right(*pair) for pair in zip(solved, exam.programs, strict=True)])
            radii = [chain.radius if isinstance(chain, Chain) else 0.0 for chain in chains]
            certified[name] = {
                f"{epsilon:g}": _share([ok and radius >= epsilon for ok, radius in zip(right, radii, strict=True)])
                for epsilon in EPSILONS
            }
        due = blame(executors, exam, chains, right)
        budget[called] = {"wrong": 1 - _share(right)} | {part: due.count(part) / len(due) for part in PARTS}
        mistakes += _tell(exam, chains, due)[: SHOWN - len(mistakes)]
    return {
        "accuracy": accuracy,
        "language": language,
        "certified": certified,
        "budget": budget,
        "mistakes": mistakes,
        "speed": speed,
    }


def plain(lengths: Sequence[int], count: int, seed: int) -> Exam:
    """Sentences in the plain form, of these lengths."""
    records = make("steps", count, seed + 1000, lengths=dict.fromkeys(lengths, 1.0))
    return Exam([record["expr"] for record in records], [Program.parse(record["program"]) for record in records])


def held_out(style: str, count: int, seed: int) -> Exam:
    """Sentences of two to four steps in words that training never shows together."""
    draw = random.Random(f"{seed}/held out/{style}")
    programs = [sample(draw, draw.choice((2, 3, 4))) for _ in range(count)]
    return Exam([render(program, draw, "held_out", style) for program in programs], programs)


def blame(
    executors: dict[str, Executor], exam: Exam, chains: Sequence[Chain | RedxError], right: Sequence[bool]
) -> list[str | None]:
    """What each wrong answer is due to: one part after the other is replaced by its oracle until it is right."""
    due: list[str | None] = [None] * len(right)
    wrong = [row for row, ok in enumerate(right) if not ok]
    ways = {"decomposition": "red", "routing": "red-oracle", "composition": "oracle"}
    for part, rule in ways.items():
        solved = executors[rule].solve([exam.programs[row] for row in wrong]) if rule in executors else []
        for row, chain in zip(wrong, solved, strict=False):
            if _right(chain, exam.programs[row]):
                due[row] = part
        wrong = [row for row in wrong if due[row] is None]
    for row in wrong:
        due[row] = "expert"
    return due


def _solve(executor: Executor, programs: Sequence[Program | RedxError]) -> list[Chain | RedxError]:
    chains = iter(executor.solve([each for each in programs if isinstance(each, Program)]))
    return [next(chains) if isinstance(each, Program) else each for each in programs]


def _right(chain: Chain | RedxError, program: Program) -> bool:
    return isinstance(chain, Chain) and chain.answer == program.value()


def _tell(exam: Exam, chains: Sequence[Chain | RedxError], due: Sequence[str | None]) -> list[tuple[Any, ...]]:
    told = []
    for text, program, chain, part in zip(exam.texts, exam.programs, chains, due, strict=True):
        if part:
            solved = isinstance(chain, Chain)
            said = (str(chain.answer) if chain.answer is not None else chain.reason) if solved else str(chain)
            weakest = str(chain.weakest) if solved and chain.steps else "—"
            told.append((text, said, str(program.value()), part, weakest))
    return told


def _has(model: Model, rule: str) -> bool:
    if "oracle" in rule and set(model.experts.names) != {"add", "sub"}:
        return False  # whose step it is can be told by its operation alone
    try:
        with model.using(rule):
            return True
    except RedxError:
        return False


def _every_step(data: dict[int, Data], parts: dict[int, Banks]) -> dict[str, float]:
    """How many of the single test questions each seed's base gets right."""
    return {
        str(seed): float((predicted_classes(next(iter(banks.values())).base) == data[seed].test.labels).double().mean())
        for seed, banks in parts.items()
    }


def _share(found: Sequence[bool]) -> float:
    return sum(found) / max(1, len(found))


def _mean(found: Sequence[Any]) -> Any:
    """The mean of nested figures."""
    if isinstance(found[0], dict):
        return {name: _mean([each[name] for each in found]) for name in found[0]}
    return sum(found) / len(found)
