"""Programs are solved step by step by a composed model: each step is a question, and its answer feeds the next.

No arithmetic is done here. What a chain of n steps is worth against a wrong router follows from its steps: it is safe
where every step is, so its radius is the smallest of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from redx.composition.evaluation import certify
from redx.errors import RedxError
from redx.models.composed import Model
from redx.tasks.arithmetic.decomposers import Decomposer
from redx.tasks.arithmetic.program import Program

LOW, HIGH = 2, 100  # results that a step may have
LARGEST = 50  # operand that the experts know
WORDS = {"+": ("plus", "add"), "-": ("minus", "sub")}  # how a step is asked, and whose it is by operation


@dataclass(frozen=True)
class SolvedStep:
    """One step: what was asked, what came back and from whom."""

    question: str
    answer: int
    expert: str  # of the largest weight
    weights: dict[str, float]
    radius: float


@dataclass(frozen=True)
class Chain:
    """A program with its solved steps; without an answer it has a reason."""

    program: Program
    steps: tuple[SolvedStep, ...]
    answer: int | None
    reason: str | None = None

    @property
    def radius(self) -> float:
        """Moving less than this share of the routing mass at every step changes nothing."""
        return min((step.radius for step in self.steps), default=0.0)

    @property
    def weakest(self) -> int:
        """The step, from 1, with the smallest radius."""
        return 1 + min(range(len(self.steps)), key=lambda at: self.steps[at].radius)


class Executor:
    """Solves programs with one model and one rule, many at once; a question asked before is not asked again."""

    def __init__(self, model: Model, rule: str = "red") -> None:
        self.model, self.rule = model, rule
        self._known: dict[str, SolvedStep] = {}

    def ask(self, questions: Sequence[str]) -> list[SolvedStep]:
        """Answers to one-step questions."""
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        if new:
            with self.model.using(self.rule) as model:
                rule, bank = model.rule_and_bank()
                h = model.base.embed(model.read(new))
                parts = model.parts_of(h, bank, torch.full((len(new),), -1), self._domains(new))
                judged, weights = certify(rule, parts), rule.weights(parts)
            names = self.model.experts.names[: weights.shape[1]]
            for row, question in enumerate(new):
                shares = weights[row].tolist()
                self._known[question] = SolvedStep(
                    question,
                    int(self.model.classes[int(judged.predicted[row])]),
                    names[max(range(len(shares)), key=shares.__getitem__)],
                    dict(zip(names, shares, strict=True)),
                    float(judged.radius[row]),
                )
        return [self._known[question] for question in questions]

    def _domains(self, questions: Sequence[str]) -> torch.Tensor:
        """Whose each question is, where experts go by operation: for the oracle alone."""
        places = {name: place for place, name in enumerate(self.model.experts.names)}
        asked = {f" {word} ": places.get(name, 0) for word, name in WORDS.values()}
        return torch.tensor([next(place for word, place in asked.items() if word in each) for each in questions])

    def solve(self, programs: Sequence[Program]) -> list[Chain]:
        """All programs together, step after step."""
        values = [program.first for program in programs]
        done: list[list[SolvedStep]] = [[] for _ in programs]
        reasons: list[str | None] = [_beyond(program) for program in programs]
        for number in range(max((len(program.steps) for program in programs), default=0)):
            going = [
                row for row, program in enumerate(programs) if reasons[row] is None and number < len(program.steps)
            ]
            asked = [ask(values[row], *programs[row].steps[number]) for row in going]
            for row, solved in zip(going, self.ask(asked), strict=True):
                done[row].append(solved)
                values[row] = solved.answer
                if not LOW <= solved.answer <= HIGH:
                    way = f"below {LOW}" if solved.answer < LOW else f"above {HIGH}"
                    reasons[row] = (
                        f"Step {number + 1} ({solved.question[8:-1]}) comes out {way}, which is out of range."
                    )
        return [
            Chain(program, tuple(steps), None if reason else value, reason)
            for program, steps, value, reason in zip(programs, done, values, reasons, strict=True)
        ]


def ask(value: int, operator: str, operand: int) -> str:
    """A step as the experts are asked it."""
    return f"What is {value} {WORDS[operator][0]} {operand}?"


def _beyond(program: Program) -> str | None:
    """Why no expert knows the operands of a program."""
    strange = [operand for _, operand in program.steps if not 1 <= operand <= LARGEST]
    if strange:
        return f"The experts add and subtract 1 to {LARGEST}, not {strange[0]}."
    return None if 1 <= program.first <= HIGH else f"The experts start from 1 to {HIGH}, not from {program.first}."


class Solver:
    """From a sentence to an answer: a decomposer finds the steps, an executor solves them."""

    def __init__(self, decomposer: Decomposer, executor: Executor) -> None:
        self.decomposer, self.executor = decomposer, executor

    def solve(self, texts: Sequence[str]) -> list[Chain | RedxError]:
        """A chain for every text, or why it cannot be read."""
        read = self.decomposer.decompose(texts)
        chains = iter(self.executor.solve([each for each in read if isinstance(each, Program)]))
        return [next(chains) if isinstance(each, Program) else each for each in read]
