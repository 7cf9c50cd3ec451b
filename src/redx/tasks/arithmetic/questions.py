"""Generates arithmetic questions in words, of several kinds.

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
LOW, HIGH = RANGES[0][0], RANGES[-1][1]  # the smallest and the largest answer
OPERAND = 50  # operands are 1 to 50
SIGNED_OPERANDS = [*range(-OPERAND, 0), *range(1, OPERAND + 1)]
LONGEST = 8  # operators in a chain
STEPS = {2: 0.2, 3: 0.4, 4: 0.4}  # shares of chains of 2, 3 and 4 steps

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
    """The word and the symbol of an operation, and a function that draws operands for a wanted answer."""

    word: str
    symbol: str
    operands: Callable[[Random, int], tuple[int, int]]


def make(kind: str, total: int, seed: int, **options: Any) -> list[dict[str, Any]]:
    """Return random questions; the same seed and options give the same questions on every machine.

    Parameters
    ----------
    kind
        A name in `KINDS`.
    total
        Number of questions.
    seed
        Seed of the random draws.
    **options
        Options of the kind: the keyword-only parameters of its generator.

    Returns
    -------
    list of dict
        One record per question, with the fields of the kind.
    """
    if kind not in KINDS:
        raise RedxError(f"There is no kind of question called '{kind}'; choose {_either(KINDS)}.")
    if total < 1:
        raise RedxError(f"Cannot make {total} questions; ask for at least one.")
    generate = KINDS[kind].make
    known = [
        name for name, option in inspect.signature(generate).parameters.items() if option.kind is option.KEYWORD_ONLY
    ]
    if unknown := sorted(set(options) - set(known)):
        choice = f"choose {_either(known)}" if known else "it has none"
        raise RedxError(f"Questions of the kind '{kind}' have no option '{unknown[0]}'; {choice}.")
    rows = generate(Random(f"{seed}/questions/{kind}"), total, **options)
    return [dict(zip(KINDS[kind].fields, row, strict=True)) for row in rows]


def domain_of(answer: int) -> int:
    """Return the index of the range that an answer lies in."""
    for domain, (low, high) in enumerate(RANGES):
        if low <= answer <= high:
            return domain
    raise RedxError(f"The answer {answer} is in no range; use questions whose answers are {LOW} to {HIGH}.")


# --- generators: from a source of random numbers and a total to the records of a kind


def additions(draw: Random, total: int, *, balanced: bool = False) -> Iterator[tuple[str, int]]:
    """Yield sums of operands 1 to 50; if balanced, every sum of 2 to 99 equally often, with operands from 0 on."""
    for answer in draw_shares(draw, dict.fromkeys(range(2, 100), 1), total) if balanced else [None] * total:
        left = draw.randint(1, OPERAND) if answer is None else draw.randint(0, answer)
        right = draw.randint(1, OPERAND) if answer is None else answer - left
        yield to_question(f"{left} plus {right}"), left + right


def calculations(
    draw: Random, total: int, *, operations: Sequence[str] = ("add", "sub", "mul", "div")
) -> Iterator[tuple[str, str, int, str]]:
    """Yield every operation equally often, and within it every answer of 2 to 100."""
    if not operations or not set(operations) <= set(OPERATIONS):
        names = ", ".join(OPERATIONS)
        raise RedxError(f"Cannot make questions with the operations {operations!r}; choose among {names}.")
    names = draw_shares(draw, dict.fromkeys(operations, 1), total)
    every_answer = dict.fromkeys(range(LOW, HIGH + 1), 1)
    answers = {name: iter(draw_shares(draw, every_answer, names.count(name))) for name in operations}
    for name in names:
        answer, operation = next(answers[name]), OPERATIONS[name]
        left, right = operation.operands(draw, answer)
        question, expression = f"{left} {operation.word} {right}", f"{left} {operation.symbol} {right}"
        yield to_question(question), expression, answer, name


def subtractions(draw: Random, total: int) -> Iterator[tuple[Any, ...]]:
    """Yield chains that subtract two numbers of 1 to 50; no number is above 100, so answers are at most 99."""
    for number, answer in enumerate(draw_shares(draw, dict.fromkeys(range(LOW, HIGH), 1), total)):
        second = draw.randint(1, min(OPERAND, HIGH - answer))
        first = draw.randint(1, OPERAND)
        terms = [answer + second + first, -first, -second]
        yield number, to_question(to_words(terms)), *chain_values(terms)


def mixtures(draw: Random, total: int, *, operators: Sequence[int] = (1, 2, 3)) -> Iterator[tuple[Any, ...]]:
    """Yield every range and every number of operators equally often; intermediate results are unrestricted."""
    _check_lengths("operators", operators)
    ranges = draw_shares(draw, dict.fromkeys(RANGES, 1), total)
    counts = draw_shares(draw, dict.fromkeys(operators, 1), total)
    for number, ((low, high), count) in enumerate(zip(ranges, counts, strict=True)):
        terms: list[int] = []
        while not low <= sum(terms) <= high:  # by rejection, so that all questions of a range are equally likely
            terms = [draw.randint(1, OPERAND), *draw.choices(SIGNED_OPERANDS, k=count)]
        yield number, to_question(to_words(terms)), *chain_values(terms)


def chains(draw: Random, total: int, *, lengths: Mapping[int, float] = STEPS) -> Iterator[tuple[Any, ...]]:
    """Yield chains of these lengths by share; intermediate results are 2 to 50, the last result is 2 to 100."""
    _check_lengths("lengths", lengths)
    if not all(math.isfinite(share) and share >= 0 for share in lengths.values()) or not any(lengths.values()):
        raise RedxError(f"The shares of the lengths {dict(lengths)} make no sense; give positive numbers.")
    for number, length in enumerate(draw_shares(draw, lengths, total)):
        terms = [draw.randint(1, OPERAND)]
        for step in range(1, length + 1):
            value = sum(terms)
            room = {1: (HIGH if step == length else OPERAND) - value, -1: value - LOW}
            sign = draw.choice([sign for sign in room if room[sign] > 0])
            terms.append(sign * draw.randint(1, min(OPERAND, room[sign])))
        yield number, to_words(terms), *chain_values(terms)


def draw_shares(draw: Random, shares: Mapping[Value, float], total: int) -> list[Value]:
    """Return `total` values in random order, of which every value makes up its share, up to rounding."""
    values = draw.sample(list(shares), len(shares))
    sums = list(accumulate(shares[value] for value in values))
    ends = [round(total * part / sums[-1]) for part in sums]
    repeated = [value for value, start, end in zip(values, [0, *ends], ends, strict=False) for _ in range(start, end)]
    return draw.sample(repeated, total)


# --- chains in words


def chain_values(terms: Sequence[int]) -> tuple[int, int, int, int, str]:
    """Return answer, label, domain, number of steps and program of a chain."""
    answer = sum(terms)
    return answer, answer - LOW, domain_of(answer), len(terms) - 1, program_text(terms)


def program_text(terms: Sequence[int]) -> str:
    """Return the program of a chain: "Step 1: 50 - 12 = x1", …, "Answer: x2"."""
    lines = [
        f"Step {step}: {terms[0] if step == 1 else f'x{step - 1}'} {'+' if term > 0 else '-'} {abs(term)} = x{step}"
        for step, term in enumerate(terms[1:], 1)
    ]
    return "\n".join([*lines, f"Answer: x{len(lines)}"])


def to_words(terms: Sequence[int]) -> str:
    """Return a chain in words: "12 plus 8 minus 3"."""
    return " ".join([str(terms[0]), *(f"{'plus' if term > 0 else 'minus'} {abs(term)}" for term in terms[1:])])


def to_question(words: str) -> str:
    """Return the question that asks for a result."""
    return f"What is {words}?"


# --- operands for a wanted answer


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


def _either(names: Sequence[str] | Mapping[str, Any]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


OPERATIONS = {
    "add": Operation("plus", "+", _sum_to),
    "sub": Operation("minus", "-", _subtract_to),
    "mul": Operation("times", "*", _multiply_to),
    "div": Operation("divided by", "/", _divide_to),
}

CHAIN = ("answer", "label", "domain", "num_steps", "program")  # fields of `chain_values`

_ALL = (  # a new kind is listed here
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
        "Chains of two to four steps with small intermediate results, with their program.",
        ("id", "expr", *CHAIN),
        chains,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
