"""Evaluates chains of one model: accuracy by rule and length, certified accuracy, and which part caused an error."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redx.errors import RedxError
from redx.model.model import Model
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.questions import make
from redx.tasks.arithmetic.sentences import render, sample
from redx.tasks.arithmetic.solver import Chain, Executor, solve_readable

LENGTHS = {"2": (2,), "3": (3,), "4": (4,), "5-8": (5, 6, 7, 8)}  # numbers of steps
STYLES = ("paraphrase", "story", "distractor")
RULES = ("red", "sum", "red-oracle", "moe", "uniform", "oracle", "base", "global")
EPSILONS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
PARTS = ("decomposition", "routing", "composition", "expert")  # what an error can be due to
MAX_MISTAKES = 8  # mistakes that the report lists

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Exam:
    """Test sentences with their true programs."""

    texts: list[str]
    programs: list[Program]


def evaluate_chains(model: Model, seed: int, count: int) -> dict[str, Any]:
    """Return figures of one model on `count` sentences of every length and style.

    Returns
    -------
    dict
        `accuracy` by rule and length; by sentences `language` (share of true programs and answers), `certified` (share
        that stays correct, by ε), `budget` (what errors are due to) and `speed` (sentences per second); and the rows of
        a table of `mistakes`.
    """
    assert model.extension is not None
    decomposer = model.extension.load()
    executors = {rule: Executor(model, rule) for rule in RULES if _can_use(model, rule)}
    plain = {name: plain_exam(lengths, count, seed) for name, lengths in LENGTHS.items()}
    held_out = {f"held-out {style}": held_out_exam(style, count, seed) for style in STYLES}
    accuracy: Figures = {rule: {} for rule in executors}
    certified: Figures = {}
    language: Figures = {}
    budget: Figures = {}
    mistakes: list[tuple[Any, ...]] = []
    speed: dict[str, float] = {}
    for name, exam in (plain | held_out).items():
        began = time.perf_counter()
        programs = decomposer.decompose(exam.texts)
        chains = solve_readable(executors["red"], programs)
        speed[name] = len(exam.texts) / (time.perf_counter() - began)
        correct = _correct(chains, exam)
        exact = [written == true for written, true in zip(programs, exam.programs, strict=True)]
        title = f"plain, {name} steps" if name in plain else name
        language[title] = {"program": _share(exact), "answer": _share(correct)}
        if name in plain:
            for rule, executor in executors.items():
                accuracy[rule][name] = _share(_correct(solve_readable(executor, programs), exam))
            radii = [chain.radius if isinstance(chain, Chain) else 0.0 for chain in chains]
            certified[name] = {
                f"{epsilon:g}": _share([ok and radius >= epsilon for ok, radius in zip(correct, radii, strict=True)])
                for epsilon in EPSILONS
            }
        causes = attribute_errors(executors, exam, chains, correct)
        budget[title] = {"wrong": 1 - _share(correct)} | {part: causes.count(part) / len(causes) for part in PARTS}
        mistakes += _mistake_rows(exam, chains, causes)[: MAX_MISTAKES - len(mistakes)]
    return {
        "accuracy": accuracy,
        "language": language,
        "certified": certified,
        "budget": budget,
        "mistakes": mistakes,
        "speed": speed,
    }


def plain_exam(lengths: Sequence[int], count: int, seed: int) -> Exam:
    """Return sentences in the plain style, of these numbers of steps."""
    records = make("steps", count, seed + 1000, lengths=dict.fromkeys(lengths, 1.0))
    return Exam([record["expr"] for record in records], [Program.parse(record["program"]) for record in records])


def held_out_exam(style: str, count: int, seed: int) -> Exam:
    """Return sentences of two to four steps from templates that training does not use."""
    draw = random.Random(f"{seed}/held out/{style}")
    programs = [sample(draw, draw.choice((2, 3, 4))) for _ in range(count)]
    return Exam([render(program, draw, "held_out", style) for program in programs], programs)


def attribute_errors(
    executors: dict[str, Executor], exam: Exam, chains: Sequence[Chain | RedxError], correct: Sequence[bool]
) -> list[str | None]:
    """Return the part that caused every wrong answer, and None for correct ones.

    One part after the other is replaced by its oracle until the answer is correct: the program, then the router, then
    the rule. An answer that is still wrong is due to the expert.

    Parameters
    ----------
    executors
        Executors by rule.
    exam
        The sentences and their true programs.
    chains
        The answers to the sentences.
    correct
        Whether the answers are correct.
    """
    causes: list[str | None] = [None] * len(correct)
    wrong = [row for row, ok in enumerate(correct) if not ok]
    oracles = {"decomposition": "red", "routing": "red-oracle", "composition": "oracle"}
    for part, rule in oracles.items():
        solved = executors[rule].solve([exam.programs[row] for row in wrong]) if rule in executors else []
        for row, chain in zip(wrong, solved, strict=False):
            if chain.answer == exam.programs[row].value():
                causes[row] = part
        wrong = [row for row in wrong if causes[row] is None]
    for row in wrong:
        causes[row] = "expert"
    return causes


def _correct(chains: Sequence[Chain | RedxError], exam: Exam) -> list[bool]:
    return [
        isinstance(chain, Chain) and chain.answer == program.value()
        for chain, program in zip(chains, exam.programs, strict=True)
    ]


def _mistake_rows(
    exam: Exam, chains: Sequence[Chain | RedxError], causes: Sequence[str | None]
) -> list[tuple[Any, ...]]:
    """Return a row for every wrong answer: sentence, answer, true answer, cause and weakest step."""
    rows = []
    for text, program, chain, cause in zip(exam.texts, exam.programs, chains, causes, strict=True):
        if cause:
            solved = isinstance(chain, Chain)
            answer = (str(chain.answer) if chain.answer is not None else chain.reason) if solved else str(chain)
            weakest = str(chain.weakest) if solved and chain.steps else "—"
            rows.append((text, answer, str(program.value()), cause, weakest))
    return rows


def _can_use(model: Model, rule: str) -> bool:
    """Return whether a model has what a rule needs; oracles need experts by operation, which a question shows."""
    if "oracle" in rule and set(model.experts.names) != {"add", "sub"}:
        return False
    try:
        with model.using(rule):
            return True
    except RedxError:
        return False


def _share(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))
