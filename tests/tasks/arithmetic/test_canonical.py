"""Canonical keys: wordings of one question have the same key."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redx.tasks.arithmetic.canonical import canonical

WORDINGS = {
    "12 + 5": """What is 12 plus 5? | 12 + 5 | 12+5 | 12 + 5 = | 12 + 5 = ? | twelve plus five | Add 5 to 12 | 12 ＋ 5
        Add 12 and 5. | the sum of 12 and 5 | What is the sum of twelve and five? | 12 added to 5 | 12 increased by 5
        5 more than 12 | WHAT'S 12 PLUS FIVE | what’s  12  plus 5 ? | Calculate: 12 plus 5. | 12 plus 5 equals?
        12 plus 5, please | "twelve" plus 'five'""",
    "10 - 3": """subtract 3 from 10 | 10 take away 3 | 10 less 3 | 10 − 3 | 10 – 3 | 10-3 | What is 10 minus 3?
        3 less than 10 | three subtracted from ten | Take 3 from 10 | take three away from ten | from 10 subtract 3
        the difference between 10 and 3 | 10 decreased by 3""",
    "6 * 7": """6 times 7 | six multiplied by seven | 6 × 7 | 6*7 | 6 x 7 | 6x7 | the product of 6 and 7
        multiply 6 by 7""",
    "84 / 12": """84 divided by 12 | 84 ÷ 12 | 84/12 | divide eighty-four by twelve | the quotient of 84 and 12""",
    "100 - 99": """one hundred minus ninety-nine | a hundred minus ninety nine | Hundred take away 99""",
    "20 - 1": """20-1 | twenty - one | twenty minus one""",
    "12 + 8 - 3": """What is 12 plus 8 minus 3? | 12 + 8 - 3 | twelve plus 8 minus three""",
}


@pytest.mark.parametrize(
    ("text", "key"), [(text.strip(), key) for key, texts in WORDINGS.items() for text in re.split(r"\||\n", texts)]
)
def test_every_wording_has_the_same_key(text: str, key: str) -> None:
    assert canonical(text) == key
    assert canonical(key) == key


@given(left=st.integers(0, 100), right=st.integers(0, 100))
def test_order_and_operation_count(left: int, right: int) -> None:
    assert (canonical(f"{left} plus {right}") == canonical(f"{right} plus {left}")) == (left == right)
    assert len({canonical(f"{left} {word} {right}") for word in ("plus", "minus", "times", "divided by")}) == 4


def spell(number: int) -> str:
    """A number in words, the long way."""
    small = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    small = [*small.split(), "seventeen", "eighteen", "nineteen"]
    tens = ["", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split()]  # noqa: SIM905
    if number < 20:
        return small[number]
    return "one hundred" if number == 100 else f"{tens[number // 10]}-{small[number % 10]}".removesuffix("-zero")


def test_numbers_are_read_in_words() -> None:
    for number in range(101):
        assert canonical(f"What is {spell(number)} plus {spell(100 - number)}?") == f"{number} + {100 - number}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("  Who   wrote this, and why?! ", "who wrote this and why"),
        ("(3 + 4) * 2", "(3 + 4) * 2"),
        ("12 + 5 = 17", "12 + 5 = 17"),
        ("twelve", "twelve"),
        ("", ""),
        ("12 plus", "12 plus"),
        ("__import__('os')", "__import__( os )"),
    ],
)
def test_what_cannot_be_read_keeps_its_words(text: str, key: str) -> None:
    assert canonical(text) == key


PIECES = [
    *"+-*/=?.,:'() ",
    "12",
    "5",
    "x",
    "twenty",
    "-one",
    " plus ",
    " take away ",
    "add ",
    " to ",
    "what is ",
    "why",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text(st.characters(codec="ascii")))
def test_a_key_is_its_own_key(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
