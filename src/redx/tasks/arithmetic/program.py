"""Programs: a first operand and a chain of additions and subtractions, without any intermediate result.

A program is written `Step 1: 12 + 5 = x1`, `Step 2: x1 - 3 = x2`, `Answer: x2`, one per line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from redx.errors import RedxError

LARGEST = 999  # the largest operand

_LINE = re.compile(r"Step ([1-9][0-9]*): (0|[1-9][0-9]*|x[1-9][0-9]*) ([+-]) (0|[1-9][0-9]*) = x([1-9][0-9]*)")


class Step(NamedTuple):
    """One operation on the result of the steps before it."""

    operator: str  # "+" or "-"
    operand: int


@dataclass(frozen=True)
class Program:
    """A chain of additions and subtractions.

    Parameters
    ----------
    first
        The first operand, 0 to 999.
    steps
        At least one step: an operator, "+" or "-", and an operand, 0 to 999.

    Raises
    ------
    RedxError
        Where the program would be malformed.

    Examples
    --------
    >>> program = Program(12, (Step("+", 5), Step("-", 3)))
    >>> print(program)
    Step 1: 12 + 5 = x1
    Step 2: x1 - 3 = x2
    Answer: x2
    >>> program.value()
    14
    """

    first: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple) or not self.steps:
            raise RedxError("A program needs a tuple of at least one step; give an operator and an operand.")
        if not all(isinstance(step, tuple) and len(step) == 2 for step in self.steps):
            raise RedxError("A step of a program is a pair; give an operator and an operand.")
        for operator, _ in self.steps:
            if operator not in ("+", "-"):
                raise RedxError(f"A program has no operator {operator!r}; use '+' or '-'.")
        for operand in self.operands:
            if type(operand) is not int or not 0 <= operand <= LARGEST:
                raise RedxError(f"A program cannot have the operand {operand!r}; use whole numbers 0 to {LARGEST}.")
        object.__setattr__(self, "steps", tuple(Step(*step) for step in self.steps))

    @property
    def operands(self) -> tuple[int, ...]:
        """All operands, the first one included."""
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
        """Return the program that `str` writes so; any other text is refused."""
        matches = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
        lines = [match for match in matches if match]
        if lines and len(lines) == len(matches) and lines[0][2][0] != "x":
            steps = tuple(Step(line[3], _parse_number(line[4])) for line in lines)
            program = cls(_parse_number(lines[0][2]), steps)
            if str(program) == text:  # this also checks the numbering, the results and the last line
                return program
        raise RedxError("This is no program; write 'Step 1: 12 + 5 = x1', one step per line, and last 'Answer: x1'.")

    def value(self) -> int:
        """Return the true result by Python's own arithmetic: for scoring alone, never to compute an answer."""
        return self.results()[-1]

    def results(self) -> list[int]:
        """Return the true result after every step: for scoring alone, like `value`."""
        signed = (operand if operator == "+" else -operand for operator, operand in self.steps)
        return list(accumulate(signed, initial=self.first))[1:]


def _parse_number(digits: str) -> int:
    """Return the number that the digits stand for, or, where they are four or more, one that is too large as well."""
    return int(digits[:4])
