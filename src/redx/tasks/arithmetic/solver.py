"""Solves programs step by step with a composed model: every step is a question, and its answer enters the next step.

No arithmetic is done here. A chain keeps its answer under wrong routing as long as all of its steps do, so its radius
is the smallest radius of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from redx.composition.evaluation import certify
from redx.errors import RedxError
from redx.model.model import Model
from redx.tasks.arithmetic.decomposers import Decomposer
from redx.tasks.arithmetic.program import Program

LOW, HIGH = 2, 100  # results that a step may have
LARGEST = 50  # the largest operand that the experts were trained on
WORDS = {"+": ("plus", "add"), "-": ("minus", "sub")}  # by operator: its word in a question, and its domain


@dataclass(frozen=True)
class SolvedStep:
    """The answer of the model to one step.

    Parameters
    ----------
    question
        The question, such as "What is 12 plus 5?".
    answer
        The answer of the model.
    expert
        The expert with the largest weight.
    weights
        The weight of every expert by name.
    radius
        The answer does not change while less than this share of the routing weight is moved.
    """

    question: str
    answer: int
    expert: str
    weights: dict[str, float]
    radius: float


@dataclass(frozen=True)
class Chain:
    """A program with its solved steps.

    Parameters
    ----------
    program
        The program.
    steps
        The steps that were solved.
    answer
        The answer of the last step; None where the program could not be solved.
    reason
        Why there is no answer; None where there is one.
    """

    program: Program
    steps: tuple[SolvedStep, ...]
    answer: int | None
    reason: str | None = None

    @property
    def radius(self) -> float:
        """The answer does not change while less than this share of the routing weight is moved at every step."""
        return min((step.radius for step in self.steps), default=0.0)

    @property
    def weakest(self) -> int:
        """The number, from 1, of the step with the smallest radius."""
        return 1 + min(range(len(self.steps)), key=lambda index: self.steps[index].radius)


class Executor:
    """Solves programs with one model and one rule, many at once; a repeated question is answered from memory.

    Parameters
    ----------
    model
        A model of the task `steps`, or one that answers the same questions.
    rule
        The rule that composes its experts.
    """

    def __init__(self, model: Model, rule: str = "red") -> None:
        self.model, self.rule = model, rule
        self._known: dict[str, SolvedStep] = {}

    def ask(self, questions: Sequence[str]) -> list[SolvedStep]:
        """Return the answers to questions of one step.

        Parameters
        ----------
        questions
            Questions such as "What is 12 plus 5?".

        Returns
        -------
        list of SolvedStep
            One per question, in the order of the questions.
        """
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        if new:
            with self.model.using(self.rule) as model:
                rule, bank = model.rule_and_bank()
                h = model.base.embed(model.read(new))
                parts = model.parts_of(h, bank, torch.full((len(new),), -1), self._domains(new))
                certified, weights = certify(rule, parts), rule.weights(parts)
            names = self.model.experts.names[: weights.shape[1]]
            for row, question in enumerate(new):
                shares = weights[row].tolist()
                self._known[question] = SolvedStep(
                    question,
                    int(self.model.classes[int(certified.predicted[row])]),
                    names[max(range(len(shares)), key=shares.__getitem__)],
                    dict(zip(names, shares, strict=True)),
                    float(certified.radius[row]),
                )
        return [self._known[question] for question in questions]

    def _domains(self, questions: Sequence[str]) -> torch.Tensor:
        """Return the expert of every question by its operation, (N,), which only the oracle rules use."""
        experts = {name: index for index, name in enumerate(self.model.experts.names)}
        by_word = {f" {word} ": experts.get(name, 0) for word, name in WORDS.values()}
        return torch.tensor([next(index for word, index in by_word.items() if word in text) for text in questions])

    def solve(self, programs: Sequence[Program]) -> list[Chain]:
        """Return programs with their solved steps; step n of all programs is solved at once.

        Parameters
        ----------
        programs
            The programs.

        Returns
        -------
        list of Chain
            One per program, in the order of the programs.
        """
        values = [program.first for program in programs]
        done: list[list[SolvedStep]] = [[] for _ in programs]
        reasons: list[str | None] = [_unknown_operand(program) for program in programs]
        for number in range(max((len(program.steps) for program in programs), default=0)):
            running = [
                row for row, program in enumerate(programs) if reasons[row] is None and number < len(program.steps)
            ]
            questions = [step_question(values[row], *programs[row].steps[number]) for row in running]
            for row, solved in zip(running, self.ask(questions), strict=True):
                done[row].append(solved)
                values[row] = solved.answer
                if not LOW <= solved.answer <= HIGH:
                    side = f"below {LOW}" if solved.answer < LOW else f"above {HIGH}"
                    reasons[row] = (
                        f"Step {number + 1} ({solved.question[8:-1]}) comes out {side}, which is out of range."
                    )
        return [
            Chain(program, tuple(steps), None if reason else value, reason)
            for program, steps, value, reason in zip(programs, done, values, reasons, strict=True)
        ]


def step_question(value: int, operator: str, operand: int) -> str:
    """Return a step as a question to the experts."""
    return f"What is {value} {WORDS[operator][0]} {operand}?"


def _unknown_operand(program: Program) -> str | None:
    """Return why the experts cannot solve a program with these operands; None where they can."""
    unknown = [operand for _, operand in program.steps if not 1 <= operand <= LARGEST]
    if unknown:
        return f"The experts add and subtract 1 to {LARGEST}, not {unknown[0]}."
    return None if 1 <= program.first <= HIGH else f"The experts start from 1 to {HIGH}, not from {program.first}."


class Solver:
    """Answers sentences: a decomposer writes their programs, an executor solves these.

    Parameters
    ----------
    decomposer
        Takes sentences to programs.
    executor
        Takes programs to answers.
    """

    def __init__(self, decomposer: Decomposer, executor: Executor) -> None:
        self.decomposer, self.executor = decomposer, executor

    def solve(self, texts: Sequence[str]) -> list[Chain | RedxError]:
        """Return the answers to sentences.

        Parameters
        ----------
        texts
            Sentences such as "12 plus 5 minus 3".

        Returns
        -------
        list of Chain or RedxError
            One per sentence: a chain, or the error of a sentence that cannot be read.
        """
        return solve_readable(self.executor, self.decomposer.decompose(texts))


def solve_readable(executor: Executor, programs: Sequence[Program | RedxError]) -> list[Chain | RedxError]:
    """Return a chain for every program, and every error as it is."""
    chains = iter(executor.solve([program for program in programs if isinstance(program, Program)]))
    return [next(chains) if isinstance(program, Program) else program for program in programs]
