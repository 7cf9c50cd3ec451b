"""An executor that computes the answers of steps itself."""

from __future__ import annotations

from collections.abc import Sequence

from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.solver import Executor, SolvedStep


class ExactExecutor(Executor):
    """Answers every step exactly, or shifted by a constant, so that all its answers are wrong."""

    def __init__(self, shift: int = 0) -> None:
        self.shift, self.questions = shift, list[str]()

    def ask(self, questions: Sequence[str]) -> list[SolvedStep]:
        self.questions += questions
        return [self.answer(question) for question in questions]

    def answer(self, question: str) -> SolvedStep:
        first, sign, second = canonical(question).split()
        exact = int(first) + int(second) if sign == "+" else int(first) - int(second)
        return SolvedStep(question, exact + self.shift, "add", {"add": 1.0}, 1 / (1 + int(second)))
