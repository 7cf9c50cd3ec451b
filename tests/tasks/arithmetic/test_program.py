"""A program prints in one form, parses back from that form alone, and cannot be malformed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redx.errors import RedxError
from redx.tasks.arithmetic.program import LARGEST, Program, Step

steps = st.builds(Step, st.sampled_from("+-"), st.integers(0, LARGEST))
programs = st.builds(Program, st.integers(0, LARGEST), st.lists(steps, min_size=1, max_size=12).map(tuple))

EXAMPLE = Program(12, (Step("+", 5), Step("-", 3)))
TEXT = "Step 1: 12 + 5 = x1\nStep 2: x1 - 3 = x2\nAnswer: x2"


def test_it_prints_the_known_form() -> None:
    assert str(EXAMPLE) == TEXT
    assert Program.parse(TEXT) == EXAMPLE


@given(programs)
def test_parse_is_the_inverse_of_printing(program: Program) -> None:
    assert Program.parse(str(program)) == program


def test_a_long_program_parses_back() -> None:
    program = Program(1, (Step("+", 1),) * 1500)
    assert Program.parse(str(program)) == program


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Answer: x0",
        "Answer: x2",
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace("Answer: x2", "Answer: x1"),
        TEXT.replace("x1 - 3", "x2 - 3"),
        TEXT.replace("x1 - 3", "17 - 3"),
        TEXT.replace("= x2", "= 14"),
        TEXT.replace("12 + 5", "x0 + 5"),
        TEXT.replace("12", "012"),
        TEXT.replace("12", "１２"),
        TEXT.replace("12", "9" * 5000),
        TEXT.replace("12", "1000"),
        TEXT.replace("+", "*"),
        TEXT.replace("Step 2", "Step 3"),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("5", "-5"),
        TEXT.replace("5", "__import__('os')"),
    ],
)
def test_parse_refuses_everything_else(text: str) -> None:
    with pytest.raises(RedxError):
        Program.parse(text)


@given(st.text(max_size=80))
def test_parse_of_any_text_gives_that_text_back_or_refuses(text: str) -> None:
    with contextlib.suppress(RedxError):
        assert str(Program.parse(text)) == text


@pytest.mark.parametrize(
    ("first", "chain"),
    [
        (12, ()),
        (12, [("+", 5)]),
        (12, (("*", 5),)),
        (12, (("+", -1),)),
        (12, (("+", LARGEST + 1),)),
        (12, (("+", 5.0),)),
        (12, (("+",),)),
        (True, (("+", 5),)),
        ("12", (("+", 5),)),
        (-1, (("+", 5),)),
    ],
)
def test_a_malformed_program_cannot_be_made(first: object, chain: object) -> None:
    with pytest.raises(RedxError):
        Program(first, chain)  # pyright: ignore[reportArgumentType]


def test_the_value_is_the_last_result() -> None:
    assert EXAMPLE.results() == [17, 14]
    assert EXAMPLE.value() == 14
    assert EXAMPLE.operands == (12, 5, 3)
