"""A program is the structure of a sum: a first operand and a chain of steps, never an intermediate number.

It prints as `Step 1: 12 + 5 = x1`, `Step 2: x1 - 3 = x2`, `Answer: x2`, one a line, and parses back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from redx.errors import RedxError

LARGEST = 999  # of an operand

_LINE = re.compile(r"Step ([1-9][0-9]*): (0|[1-9][0-9]*|x[1-9][0-9]*) ([+-]) (0|[1-9][0-9]*) = x([1-9][0-9]*)")


class Step(NamedTuple):
    """What is done to the result so far."""

    operator: str  # "+" or "-"
    operand: int


@dataclass(frozen=True)
class Program:
    """A chain of additions and subtractions; a malformed one cannot be made."""

    first: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple) or not self.steps:
            raise RedxError("A program needs a tuple of at least one step; give an operator and an operand.")
        if not all(isinstance(step, tuple) and len(step) == 2 for step in self.steps):
            raise RedxError("A step of a program is a pair; give an operator and an operand.")
        for operator, _ in self.steps:
            if operator not in ("+", "-"):
                raise RedxError(f"A program knows no operator {operator!r}; use '+' or '-'.")
        for operand in self.operands:
            if type(operand) is not int or not 0 <= operand <= LARGEST:
                raise RedxError(f"A program cannot hold the operand {operand!r}; use whole numbers 0 to {LARGEST}.")
        object.__setattr__(self, "steps", tuple(Step(*step) for step in self.steps))

    @property
    def operands(self) -> tuple[int, ...]:
        return (self.first, *(operand for _, operand in self.steps))

    def __str__(self) -> str:
        left = (str(self.first), *(f"x{number}" for number in range(1, len(self.steps))))
        lines = [
            f"Step {number}: {before} {operator} {operand} = x{number}"
            for number, (before, (operator, operand)) in enumerate(zip(left, self.steps, strict=True), 1)
        ]
        return "\n".join([*lines, f"Answer: x{len(self.steps)}"])

    @classmethod
    def parse(cls, text: str) -> Program:
        """The inverse of `str`; refuses everything that `str` does not print."""
        matches = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
        found = [match for match in matches if match]
        if found and len(found) == len(matches) and found[0][2][0] != "x":
            steps = tuple(Step(match[3], _number(match[4])) for match in found)
            program = cls(_number(found[0][2]), steps)
            if str(program) == text:  # numbering, results and the last line are right as well
                return program
        raise RedxError("This is no program; write 'Step 1: 12 + 5 = x1', one step a line, and last 'Answer: x1'.")

    def value(self) -> int:
        """The true result by Python's own arithmetic: for scoring alone, never on the way to an answer."""
        return self.results()[-1]

    def results(self) -> list[int]:
        """The true result after every step: for scoring alone, like `value`."""
        signed = (operand if operator == "+" else -operand for operator, operand in self.steps)
        return list(accumulate(signed, initial=self.first))[1:]


def _number(digits: str) -> int:
    return int(digits[:4])  # four digits are refused as surely as four thousand
