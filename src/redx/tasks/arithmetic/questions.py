"""Arithmetic questions in words: generators of every kind, and one key for the same question in any wording.

A chain of additions and subtractions is a list of signed numbers, its terms: 12 plus 8 minus 3 is [12, 8, -3].
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, TypeVar

from redx.errors import RedxError

RANGES = ((2, 20), (21, 40), (41, 60), (61, 80), (81, 100))  # of answers: the domains


LOW, HIGH = RANGES[0][0], RANGES[-1][1]


OPERAND = 50  # operands are 1 to 50


MOVES = [*range(-OPERAND, 0), *range(1, OPERAND + 1)]


LONGEST = 8  # operators in a chain


STEPS = {2: 0.2, 3: 0.4, 4: 0.4}  # shares of 2, 3 and 4 steps


Value = TypeVar("Value")


@dataclass(frozen=True)
class Kind:
    """A kind of question: `make(draw, total, **options)` yields the values of `fields`, record by record."""

    name: str
    about: str
    fields: tuple[str, ...]
    make: Callable[..., Iterator[tuple[Any, ...]]]


@dataclass(frozen=True)
class Operation:
    """How an operation is said and written, and how its operands are drawn for a wanted answer."""

    word: str
    symbol: str
    operands: Callable[[Random, int], tuple[int, int]]


def make(kind: str, total: int, seed: int, **options: Any) -> list[dict[str, Any]]:
    """So many records of a kind; the same seed and options give the same records on every machine."""
    if kind not in KINDS:
        raise RedxError(f"There is no kind of question called '{kind}'; choose {_either(KINDS)}.")
    if total < 1:
        raise RedxError(f"Cannot make {total} questions; ask for at least one.")
    maker = KINDS[kind]
    known = [
        name for name, option in inspect.signature(maker.make).parameters.items() if option.kind is option.KEYWORD_ONLY
    ]
    if unknown := sorted(set(options) - set(known)):
        choice = f"choose {_either(known)}" if known else "it has none"
        raise RedxError(f"Questions of the kind '{kind}' have no option '{unknown[0]}'; {choice}.")
    rows = maker.make(Random(f"{seed}/questions/{kind}"), total, **options)
    return [dict(zip(maker.fields, row, strict=True)) for row in rows]


def domain_of(answer: int) -> int:
    """The index of the range that an answer lies in."""
    for domain, (low, high) in enumerate(RANGES):
        if low <= answer <= high:
            return domain
    raise RedxError(f"The answer {answer} is in no range; use questions whose answers are {LOW} to {HIGH}.")


def additions(draw: Random, total: int, *, balanced: bool = False) -> Iterator[tuple[str, int]]:
    """Operands 1 to 50; or balanced: every sum of 2 to 99 equally often, with zero among the operands."""
    for answer in deal(draw, dict.fromkeys(range(2, 100), 1), total) if balanced else [None] * total:
        left = draw.randint(1, OPERAND) if answer is None else draw.randint(0, answer)
        right = draw.randint(1, OPERAND) if answer is None else answer - left
        yield ask(f"{left} plus {right}"), left + right


def calculations(
    draw: Random, total: int, *, operations: Sequence[str] = ("add", "sub", "mul", "div")
) -> Iterator[tuple[str, str, int, str]]:
    """Every operation equally often, and within it every answer of 2 to 100."""
    if not operations or not set(operations) <= set(OPERATIONS):
        raise RedxError(f"Cannot make questions with the operations {operations!r}; choose among {_all(OPERATIONS)}.")
    dealt = deal(draw, dict.fromkeys(operations, 1), total)
    every = dict.fromkeys(range(LOW, HIGH + 1), 1)
    answers = {name: iter(deal(draw, every, dealt.count(name))) for name in operations}
    for name in dealt:
        answer, operation = next(answers[name]), OPERATIONS[name]
        left, right = operation.operands(draw, answer)
        yield ask(f"{left} {operation.word} {right}"), f"{left} {operation.symbol} {right}", answer, name


def subtractions(draw: Random, total: int) -> Iterator[tuple[Any, ...]]:
    """Two numbers of 1 to 50 taken away one after the other; no result above 100, so answers end at 99."""
    for number, answer in enumerate(deal(draw, dict.fromkeys(range(LOW, HIGH), 1), total)):
        second = draw.randint(1, min(OPERAND, HIGH - answer))
        first = draw.randint(1, OPERAND)
        terms = [answer + second + first, -first, -second]
        yield number, ask(say(terms)), *facts(terms)


def mixtures(draw: Random, total: int, *, operators: Sequence[int] = (1, 2, 3)) -> Iterator[tuple[Any, ...]]:
    """Every range and every number of operators equally often; results on the way are free."""
    _check_lengths("operators", operators)
    ranges = deal(draw, dict.fromkeys(RANGES, 1), total)
    counts = deal(draw, dict.fromkeys(operators, 1), total)
    for number, ((low, high), count) in enumerate(zip(ranges, counts, strict=True)):
        terms: list[int] = []
        while not low <= sum(terms) <= high:  # until it fits, so that all questions of a range are equally likely
            terms = [draw.randint(1, OPERAND), *draw.choices(MOVES, k=count)]
        yield number, ask(say(terms)), *facts(terms)


def chains(draw: Random, total: int, *, lengths: Mapping[int, float] = STEPS) -> Iterator[tuple[Any, ...]]:
    """Two to four steps, or the given shares of other lengths; results on the way are 2 to 50, the last 2 to 100."""
    _check_lengths("lengths", lengths)
    if not all(math.isfinite(share) and share >= 0 for share in lengths.values()) or not any(lengths.values()):
        raise RedxError(f"The shares of the lengths {dict(lengths)} make no sense; give positive numbers.")
    for number, length in enumerate(deal(draw, lengths, total)):
        terms = [draw.randint(1, OPERAND)]
        for step in range(1, length + 1):
            value = sum(terms)
            most = {1: (HIGH if step == length else OPERAND) - value, -1: value - LOW}
            sign = draw.choice([sign for sign in most if most[sign] > 0])
            terms.append(sign * draw.randint(1, min(OPERAND, most[sign])))
        yield number, say(terms), *facts(terms)


def deal(draw: Random, shares: Mapping[Value, float], total: int) -> list[Value]:
    """So many values, each as often as its share says (up to rounding), in random order."""
    values = draw.sample(list(shares), len(shares))
    sums = list(accumulate(shares[value] for value in values))
    ends = [round(total * part / sums[-1]) for part in sums]
    dealt = [value for value, start, end in zip(values, [0, *ends], ends, strict=False) for _ in range(start, end)]
    return draw.sample(dealt, total)


def facts(terms: Sequence[int]) -> tuple[int, int, int, int, str]:
    """Answer, label, domain, number of steps and program of a chain."""
    answer = sum(terms)
    return answer, answer - LOW, domain_of(answer), len(terms) - 1, program(terms)


def program(terms: Sequence[int]) -> str:
    """The chain step by step: "Step 1: 50 - 12 = x1", …, "Answer: x2"."""
    lines = [
        f"Step {step}: {terms[0] if step == 1 else f'x{step - 1}'} {'+' if term > 0 else '-'} {abs(term)} = x{step}"
        for step, term in enumerate(terms[1:], 1)
    ]
    return "\n".join([*lines, f"Answer: x{len(lines)}"])


def say(terms: Sequence[int]) -> str:
    return " ".join([str(terms[0]), *(f"{'plus' if term > 0 else 'minus'} {abs(term)}" for term in terms[1:])])


def ask(words: str) -> str:
    return f"What is {words}?"


def _sum_to(draw: Random, answer: int) -> tuple[int, int]:
    left = draw.randint(max(1, answer - OPERAND), min(OPERAND, answer - 1))
    return left, answer - left


def _subtract_to(draw: Random, answer: int) -> tuple[int, int]:
    right = draw.randint(1, OPERAND)
    return answer + right, right


def _multiply_to(draw: Random, answer: int) -> tuple[int, int]:
    left = draw.choice([factor for factor in range(1, answer + 1) if answer % factor == 0])
    return left, answer // left


def _divide_to(draw: Random, answer: int) -> tuple[int, int]:
    right = draw.randint(1, 12)
    return answer * right, right


def _check_lengths(option: str, lengths: Sequence[int] | Mapping[int, float]) -> None:
    if not lengths or not all(isinstance(length, int) and 1 <= length <= LONGEST for length in lengths):
        raise RedxError(f"The option '{option}' cannot be {lengths!r}; give whole numbers from 1 to {LONGEST}.")


def _all(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(names)


def _either(names: Sequence[str] | Mapping[str, Any]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


OPERATIONS = {
    "add": Operation("plus", "+", _sum_to),
    "sub": Operation("minus", "-", _subtract_to),
    "mul": Operation("times", "*", _multiply_to),
    "div": Operation("divided by", "/", _divide_to),
}


CHAIN = ("answer", "label", "domain", "num_steps", "program")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("addition", "Sums of two numbers from 1 to 50.", ("question", "answer"), additions),
        Kind(
            "ops",
            "One operation of four, balanced over operations and answers.",
            ("question", "expr", "answer", "operation"),
            calculations,
        ),
        Kind(
            "two-step-subtraction",
            "Two subtractions in a row, with their program.",
            ("id", "question", *CHAIN),
            subtractions,
        ),
        Kind(
            "mixed",
            "One to three additions and subtractions, balanced over the ranges of answers.",
            ("id", "question", *CHAIN),
            mixtures,
        ),
        Kind(
            "steps",
            "Chains of two to four steps with small results on the way, with their program.",
            ("id", "expr", *CHAIN),
            chains,
        ),
    )
}
