"""Arithmetic questions: the answer is what the words ask for, and answers are balanced."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from operator import add, floordiv, mul, sub
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redx.errors import RedxError
from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.questions import KINDS, RANGES, domain_of, make

SYMBOLS = {"+": add, "-": sub, "*": mul, "/": floordiv}


CHAIN = ["answer", "label", "domain", "num_steps", "program"]


FIELDS = {
    "addition": ["question", "answer"],
    "ops": ["question", "expr", "answer", "operation"],
    "two-step-subtraction": ["id", "question", *CHAIN],
    "mixed": ["id", "question", *CHAIN],
    "steps": ["id", "expr", *CHAIN],
}


CHAINS = [kind for kind, fields in FIELDS.items() if "program" in fields]


def words(record: dict[str, Any]) -> str:
    return record.get("question") or record["expr"]


def compute(key: str) -> list[int]:
    """The results on the way of "12 + 8 - 3", from left to right."""
    first, *rest = key.split()
    results = [int(first)]
    for symbol, number in zip(rest[::2], rest[1::2], strict=True):
        results.append(SYMBOLS[symbol](results[-1], int(number)))
    return results[1:]


def execute(program: str) -> tuple[list[int], list[int]]:
    """The results and the operands of a program, read line by line."""
    *steps, last = program.split("\n")
    known: dict[str, int] = {}
    operands: list[int] = []
    for number, step in enumerate(steps, 1):
        match = re.fullmatch(rf"Step {number}: (\w+) ([+-]) (\d+) = (x{number})", step)
        assert match, step
        left, symbol, right, name = match.groups()
        known[name] = SYMBOLS[symbol](known[left] if left in known else int(left), int(right))
        operands += [int(number) for number in (left, right) if number.isdigit()]
    assert last == f"Answer: x{len(steps)}"
    return list(known.values()), operands


def even(values: Iterable[Any], among: Iterable[Any]) -> bool:
    """Whether every one of these values occurs equally often, up to one, and no other does."""
    counts, among = Counter(values), set(among)
    return set(counts) <= among and max(counts.values()) - min(counts[value] for value in among) <= 1


@pytest.mark.parametrize("kind", FIELDS)
def test_a_record_has_the_fields_of_its_kind_in_order(kind: str) -> None:
    assert KINDS[kind].name == kind
    assert KINDS[kind].about.endswith(".")
    for record in make(kind, 50, 0):
        assert list(record) == list(KINDS[kind].fields) == FIELDS[kind]


def test_every_kind_is_tested() -> None:
    assert set(KINDS) == set(FIELDS)


@pytest.mark.parametrize("kind", FIELDS)
@given(total=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_the_answer_is_what_the_words_ask_for(kind: str, total: int, seed: int) -> None:
    records = make(kind, total, seed)
    assert len(records) == total
    for record in records:
        assert compute(canonical(words(record)))[-1] == record["answer"]
        assert 2 <= record["answer"] <= 100


@pytest.mark.parametrize("kind", CHAINS)
def test_the_program_computes_the_answer_and_says_what_the_words_say(kind: str) -> None:
    for number, record in enumerate(make(kind, 2000, 1)):
        results, _ = execute(record["program"])
        assert results == compute(canonical(words(record)))
        assert results[-1] == record["answer"] == record["label"] + 2
        assert len(results) == record["num_steps"]
        low, high = RANGES[record["domain"]]
        assert low <= record["answer"] <= high
        assert record["id"] == number


@pytest.mark.slow
def test_a_seed_gives_the_same_questions_in_another_process() -> None:
    code = f"from redx.tasks.arithmetic.questions import make; print([make(kind, 30, 5) for kind in {list(FIELDS)}])"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == str([make(kind, 30, 5) for kind in FIELDS])
    assert all(make(kind, 30, 5) != make(kind, 30, 6) for kind in FIELDS)


def test_additions_are_uniform_over_operands() -> None:
    pairs = [tuple(map(int, re.findall(r"\d+", record["question"]))) for record in make("addition", 50_000, 0)]
    counts = Counter(pairs)
    assert set(counts) == {(left, right) for left in range(1, 51) for right in range(1, 51)}
    assert sum((count - 20) ** 2 / 20 for count in counts.values()) < 2499 + 5 * 4998**0.5  # chi squared
    assert make("addition", 1, 0)[0]["question"] == f"What is {pairs[0][0]} plus {pairs[0][1]}?"


def test_balanced_additions_reach_every_sum_equally_often_and_use_zero() -> None:
    records = make("addition", 98 * 40 + 7, 0, balanced=True)
    left, right = (
        {int(match[side]) for record in records if (match := re.findall(r"\d+", record["question"]))} for side in (0, 1)
    )
    assert even((record["answer"] for record in records), range(2, 100))
    assert {0, 1, 2} <= left <= set(range(100))
    assert {0, 1, 2} <= right <= set(range(100))


@pytest.mark.parametrize("chosen", [("add", "sub", "mul", "div"), ("mul", "div"), ("sub",)])
def test_operations_are_balanced_and_so_are_their_answers(chosen: tuple[str, ...]) -> None:
    records = make("ops", 1999, 0, operations=chosen)
    assert even((record["operation"] for record in records), chosen)
    for name in chosen:
        assert even((record["answer"] for record in records if record["operation"] == name), range(2, 101))


def test_operations_keep_to_their_operands_and_say_what_they_write() -> None:
    words = {"add": "plus", "sub": "minus", "mul": "times", "div": "divided by"}
    for record in make("ops", 4000, 2):
        left, symbol, right = record["expr"].split()
        assert record["question"] == f"What is {left} {words[record['operation']]} {right}?"
        assert dict(zip("+-*/", words, strict=True))[symbol] == record["operation"]
        assert 1 <= int(right) <= {"add": 50, "sub": 50, "mul": 100, "div": 12}[record["operation"]]
        assert int(left) <= 50 or symbol != "+"
        assert int(left) % int(right) == 0 or symbol != "/"


def test_two_subtractions_stay_within_2_to_100() -> None:
    records = make("two-step-subtraction", 5000, 0)
    for record in records:
        (middle, last), (_, *taken) = execute(record["program"])
        assert 2 <= last < middle <= 100
        assert all(1 <= number <= 50 for number in taken)
        assert re.fullmatch(r"What is \d+ minus \d+ minus \d+\?", record["question"])
    assert even((record["answer"] for record in records), range(2, 100))


def test_mixtures_are_balanced_over_ranges_and_operators() -> None:
    records = make("mixed", 3001, 0)
    assert even((record["domain"] for record in records), range(5))
    assert even((record["num_steps"] for record in records), (1, 2, 3))
    executed = [execute(record["program"]) for record in records]
    assert all(1 <= number <= 50 for _, operands in executed for number in operands)
    assert any(not 2 <= result <= 100 for results, _ in executed for result in results)  # free on the way
    assert {record["num_steps"] for record in make("mixed", 50, 0, operators=(2,))} == {2}


@pytest.mark.parametrize(
    ("lengths", "share"), [({}, {2: 0.2, 3: 0.4, 4: 0.4}), ({5: 1.0}, {5: 1}), ({6: 3, 8: 1}, {6: 0.75, 8: 0.25})]
)
def test_steps_keep_their_lengths_and_stay_small_on_the_way(lengths: dict, share: dict[int, float]) -> None:
    records = make("steps", 2000, 0, **({"lengths": lengths} if lengths else {}))
    assert Counter(record["num_steps"] for record in records) == {length: 2000 * part for length, part in share.items()}
    for record in records:
        results, operands = execute(record["program"])
        assert all(2 <= result <= 50 for result in results[:-1])
        assert all(1 <= number <= 50 for number in operands)
    assert {record["domain"] for record in records} == set(range(5))
    assert {"plus", "minus"} <= set(" ".join(record["expr"] for record in records).split())


def test_ranges_cover_2_to_100_without_gaps() -> None:
    assert [domain_of(answer) for answer in (2, 20, 21, 40, 41, 60, 61, 80, 81, 100)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [answer for low, high in RANGES for answer in range(low, high + 1)] == list(range(2, 101))
    for answer in (1, 101, -5):
        with pytest.raises(RedxError, match=f"The answer {answer} is in no range"):
            domain_of(answer)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "algebra",
            {},
            "no kind of question called 'algebra'; choose addition, ops, two-step-subtraction, mixed or steps",
        ),
        ("addition", {"operators": (1,)}, "no option 'operators'; choose balanced"),
        ("two-step-subtraction", {"balanced": True}, "no option 'balanced'; it has none"),
        ("addition", {"total": 0}, "Cannot make 0 questions"),
        ("ops", {"operations": ("add", "pow")}, "choose among add, sub, mul, div"),
        ("ops", {"operations": ()}, "choose among add, sub, mul, div"),
        ("mixed", {"operators": (0, 1)}, "'operators' cannot be .* from 1 to 8"),
        ("mixed", {"operators": (1.5,)}, "'operators' cannot be"),
        ("mixed", {"operators": ()}, "'operators' cannot be"),
        ("steps", {"lengths": {9: 1.0}}, "'lengths' cannot be"),
        ("steps", {"lengths": {"5": 1.0}}, "'lengths' cannot be"),
        ("steps", {"lengths": {5: -1.0, 6: 2.0}}, "make no sense"),
        ("steps", {"lengths": {5: float("nan")}}, "make no sense"),
        ("steps", {"lengths": {5: 0.0}}, "make no sense"),
    ],
)
def test_what_cannot_be_made_is_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        make(kind, **({"total": 10, "seed": 0} | options))
