"""The canonical form of an arithmetic question: one key for the same question in any wording."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

PUNCTUATION = ".,;:!?\"'‘’“”"
SIGNS = str.maketrans("−–‐×÷" + PUNCTUATION, "---*/" + " " * len(PUNCTUATION))
ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", *(f"{n}teen" for n in ("thir", "four", "fif", "six", "seven", "eigh", "nine"))]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBERS = {word: str(number) for number, word in enumerate([*ONES, *TEENS])}
NUMBERS |= {ten: str(10 * tens) for tens, ten in enumerate(TENS, 2)}
NUMBERS |= {
    f"{ten}{joint}{word}": str(10 * tens + one)
    for tens, ten in enumerate(TENS, 2)
    for one, word in enumerate(ONES[1:], 1)
    for joint in "- "
}
NUMBERS |= dict.fromkeys(("hundred", "a hundred", "one hundred"), "100")
INFIX = {  # operators between two numbers, applied from left to right
    "plus": "+",
    "added to": "+",
    "increased by": "+",
    "minus": "-",
    "take away": "-",
    "less": "-",
    "decreased by": "-",
    "times": "*",
    "multiplied by": "*",
    "x": "*",
    "divided by": "/",
}
PHRASES = {  # other wordings by operator; a is the number that comes first in "a plus b"
    "+": ("add b to a", "add a and b", "sum of a and b", "b more than a"),
    "-": (
        "subtract b from a",
        "b subtracted from a",
        "from a subtract b",
        "take b from a",
        "take b away from a",
        "b less than a",
        "difference between a and b",
        "difference of a and b",
    ),
    "*": ("multiply a by b", "multiply a and b", "product of a and b"),
    "/": ("divide a by b", "quotient of a and b"),
}


def _any_of(words: Mapping[str, str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the words, longer ones first."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(sorted(words, key=len, reverse=True))})(?![a-z])")


NUMBER, OPERATOR = _any_of(NUMBERS), _any_of(INFIX)
EXPRESSION = re.compile(r"[0-9]+(?: ?[+*/-] ?[0-9]+)+")
PATTERNS = [
    (symbol, re.compile(re.sub(r"\b([ab])\b", r"(?P<\1>[0-9]+)", phrase)))
    for symbol, phrases in PHRASES.items()
    for phrase in phrases
]
OPENING = re.compile(
    r"(?:(?:what is|what s|how much is|calculate|compute|evaluate|find|solve|work out|please|the|result of|value of)"
    r" )*"
)
ENDING = re.compile(r"(?: (?:equals?|please))+$")


def canonical(text: str) -> str:
    """Return one key for a question in any wording.

    The order of the operands counts: "5 plus 12" is another question than "12 plus 5". A text that is no arithmetic
    question is returned in lower case without punctuation.

    Examples
    --------
    >>> canonical("What is twelve plus five?"), canonical("Add 5 to 12")
    ('12 + 5', '12 + 5')
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).lower().translate(SIGNS).split())
    body = ENDING.sub("", OPENING.sub("", plain, count=1).strip(" ="))
    body = NUMBER.sub(lambda word: NUMBERS[word[0]], body)
    chain = " ".join(OPERATOR.sub(lambda word: INFIX[word[0]], body).split())
    if EXPRESSION.fullmatch(chain):
        return " ".join(re.findall(r"[0-9]+|[+*/-]", chain))
    for symbol, pattern in PATTERNS:
        if match := pattern.fullmatch(body):
            return f"{match['a']} {symbol} {match['b']}"
    return plain
