"""Reading: what numbers are found, what is refused, and that nothing else can happen."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redx.errors import RedxError
from redx.tasks.arithmetic.sentences import spell
from redx.tasks.arithmetic.tokens import LARGEST, LONGEST, Token, tokens


def values(text: str) -> list[int]:
    return [token.value for token in tokens(text) if token.value is not None]


def test_words_numbers_signs_and_marks() -> None:
    assert tokens("What is 12 + five?") == [
        Token("word", "what", 0),
        Token("word", "is", 5),
        Token("number", "12", 8, 12),
        Token("sign", "+", 11),
        Token("number", "five", 13, 5),
        Token("mark", "?", 17),
    ]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12 plus 5 minus 3", [12, 5, 3]),
        ("12+5-3", [12, 5, 3]),
        ("12 − 5 – 3 － 1", [12, 5, 3, 1]),
        ("１２ plus ٥ minus ३", [12, 5, 3]),
        ("twenty-one plus thirty two", [21, 32]),
        ("Twenty‐one PLUS Ninety-Nine", [21, 99]),
        ("twenty - one", [20, 1]),
        ("twelve-five", [12, 5]),
        ("twenty, one", [20, 1]),
        ("one hundred minus a hundred plus hundred", [100, 100, 100]),
        ("the sum of one hundred and five", [100, 5]),
        ("Tom is a 9-year-old and has 12 marbles", [9, 12]),
        ("the 4th and 5th of 12 plus 3", [12, 3]),
        ("3kg plus 5kg", [3, 5]),
        ("x1 B52 12 plus 3", [12, 3]),
        ("007 plus 0", [7, 0]),
        ("12 plus 5.", [12, 5]),
        ("(12 + 5) - 3", [12, 5, 3]),
        ("12\nplus\t5", [12, 5]),
        ("'; DROP TABLE sums; 12 plus 5", [12, 5]),
    ],
)
def test_numbers_are_found(text: str, numbers: list[int]) -> None:
    assert values(text) == numbers


def test_every_number_word_is_read() -> None:
    for number, dash in itertools.product(range(LARGEST + 1), "- "):
        assert values(f"{spell(number, dash)} plus {number}") == [number, number]


def test_minus_signs_are_one_sign() -> None:
    signs = {token.text for dash in "-−–－‐" for token in tokens(f"12 {dash} 5") if token.kind == "sign"}
    assert signs == {"-"}


def test_a_place_is_the_place_in_the_text_as_given() -> None:
    text = "ﬃ — １２ plus ５"  # one letter that unfolds to three
    assert [text[token.start] for token in tokens(text) if token.kind == "number"] == ["１", "５"]


REFUSALS = {
    "empty": ["", "   ", "\n\t"],
    f"at most {LONGEST:,}": ["1 plus 1 " * 300, "x" * 100_000],
    "no number": ["hello", "what is it?", "plus minus"],
    "only one number": ["12", "add 5", "what is twelve"],
    "Negative": ["-5 plus 3", "−5 plus 3", "3 plus -5", "3 - -5", "12 --5", "minus five plus 3", "What is -5 plus 3"],
    "whole number": [
        "3.5 plus 2",
        "2 plus .5",
        "3,5 plus 2",
        "1,000 plus 2",
        "three point five plus two",
        "٣٫٥ plus ٢",
    ],
    "above 100": [
        "101 plus 5",
        "two hundred plus 5",
        "one hundred five plus 1",
        "a thousand plus 5",
        "9" * 1000 + " + 1",
    ],
    "Only plus and minus": [
        *(
            "12 @ 5",
            "3 & 4",
            "7 ~ 2",
            "3 times 4",
            "3 × 4",
            "3 ÷ 4",
            "3 * 4",
            "3 / 4",
            "3 ^ 4",
            "3 x 4",
            "5% of 20",
            "2 ** 3",
            "square root of 9",
        ),
        *("12 divided by 4", "4 multiplied by 3", "double 5 plus 3", "half of 6 plus 3", "20 percent of 50", "√9 + 1"),
    ],
    "control or invisible": ["12 plus\x00 5", "12\x1b plus 5", "12 \u202eplus 5", "1\u200b2 plus 5", "12 plus 5\ud800"],
    "plain digit": ["5² plus 3", "½ plus 3", "Ⅷ plus 3"],
    "mixes digits and letters": ["1e5 plus 3", "0x1F plus 3"],
    "Brackets": ["12 - (5 - 3)", "12 minus (5 plus 3)"],
}


@pytest.mark.parametrize(("words", "text"), [(words, text) for words, texts in REFUSALS.items() for text in texts])
def test_each_refusal_has_its_own_sentence(words: str, text: str) -> None:
    with pytest.raises(RedxError, match=words) as refusal:
        tokens(text)
    assert str(refusal.value).count("\n") == 0
    assert str(refusal.value).endswith(".")
    assert len(str(refusal.value)) < 160


@given(st.text(max_size=60) | st.text("0123456789+-−.,()%'x e\u0663²½", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        pieces = tokens(text)
    except RedxError:
        return
    assert sum(token.kind == "number" for token in pieces) >= 2
    for token in pieces:
        assert token.kind in ("word", "number", "sign", "mark")
        assert (token.kind == "number") == (token.value is not None)
        assert 0 <= (token.value or 0) <= LARGEST
        assert 0 <= token.start < len(text)
