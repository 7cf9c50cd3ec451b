"""From text to tokens: words, numbers, signs and marks, or one sentence that says why the text cannot be read.

Text is only ever compared with lists of words; nothing in it is evaluated.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple, NoReturn

from redx.errors import RedxError

LONGEST = 2_000  # characters
LARGEST = 100  # number

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_UNITS += " seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: value for value, word in enumerate(_UNITS.split())}
NUMBERS |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}

PLUS = frozenset({"+", "plus"})
MINUS = frozenset({"-", "minus"})
_LARGE = frozenset(["hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion"])
_PAUSES = frozenset(".,;:!?()[]'\"…“”„«»=")  # marks that may stand between numbers without being an operator
_OTHER_SIGNS = frozenset("×÷*/^%√∛∜·∙⋅∗∕⁄‰±∓∑∏∫")
_OTHER = """
times multiply multiplies multiplied multiplying multiplication product divide divides divided dividing division
quotient ratio percent percentage square squared squares cube cubed root sqrt power exponent factorial modulo mod
remainder double doubles doubled doubling triple triples tripled quadruple twice thrice half halve halves halved
quarter quarters average logarithm log
"""
_OTHER_WORDS = frozenset(_OTHER.split())
_SPECIAL = _OTHER_WORDS | _LARGE | {"x", "point", "negative", "minus"}  # words that may be refused
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_SAME = str.maketrans(
    {"−": "-", "‘": "'", "’": "'", "—": ",", "―": ",", "٫": ".", "٬": ","}
)  # em dashes part sentences
_PIECE = re.compile(r"[^\W_]+|'[^\W\d_]+|\S")
_FRACTION = re.compile(r"\d+[.,]\d+(?:[.,]\d+)*|(?<![^\s(+-])\.\d+")
_MIXED = re.compile(r"([0-9]+)([^\W\d_]+)")


class Token(NamedTuple):
    """A piece of the text, folded to lower case; a number carries its value."""

    kind: str  # "word", "number", "sign" (+ or -) or "mark" (punctuation)
    text: str
    start: int  # its place in the text as given
    value: int | None = None


class _Piece(NamedTuple):
    text: str
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Read a question; every refusal is a `RedxError`, and what comes back holds at least two numbers."""
    plain, places = _normalise(text)
    if match := _FRACTION.search(plain):
        _refuse(f"'{_short(match[0])}' is not a whole number; write numbers without a point or comma.")
    pieces = [_Piece(match[0], match.start(), match.end()) for match in _PIECE.finditer(plain)]
    found: list[Token] = []
    at = 0
    while at < len(pieces):
        at = _take(pieces, at, found)
    if places is not None:
        found = [token._replace(start=places[token.start]) for token in found]
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        _check(before, token, after)
    count = sum(token.kind == "number" for token in found)
    if count == 0:
        _refuse("The question holds no number; ask for a sum such as '12 plus 5 minus 3'.")
    if count == 1:
        _refuse("The question holds only one number; ask for a sum of at least two, such as '12 plus 5'.")
    return found


def _normalise(text: str) -> tuple[str, list[int] | None]:
    """Plain digits, signs and small letters, and (unless all was plain) where each character came from."""
    if len(text) > LONGEST:
        _refuse(f"The question has {len(text):,} characters; ask one of at most {LONGEST:,}.")
    if not text.strip():
        _refuse("The question is empty; ask for a sum such as '12 plus 5 minus 3'.")
    if text.isascii() and text.isprintable():
        return text.casefold(), None
    letters: list[str] = []
    places: list[int] = []
    for place, letter in enumerate(text):
        kind = unicodedata.category(letter)
        if kind[0] == "C" and letter not in "\t\n\r":
            _refuse("The question holds control or invisible characters; remove them and ask again.")
        if kind in ("No", "Nl"):  # as 5², ½ or Ⅷ
            _refuse(f"'{letter}' is not a plain digit; write whole numbers in digits or words.")
        for folded in unicodedata.normalize("NFKC", letter).translate(_SAME).casefold():
            digit = unicodedata.decimal(folded, None)
            dash = unicodedata.category(folded) == "Pd"
            letters.append("-" if dash else folded if digit is None else str(digit))
            places.append(place)
    return "".join(letters), places


def _take(pieces: list[_Piece], at: int, found: list[Token]) -> int:
    """Read one token, or none, into `found`; gives the place of the next piece."""
    text, start, _ = pieces[at]
    if text.isalpha() and text not in NUMBERS and text != "hundred":
        found.append(Token("word", text, start))
        return at + 1
    if text.isdecimal():
        found.append(Token("number", text, start, int(text)))
        return at + 1
    if text in NUMBERS or text == "hundred":
        value, at = _spelled(pieces, at)
        found.append(Token("number", text, start, value))
        return at
    if text[0].isdecimal():
        mixed = _MIXED.fullmatch(text)
        if mixed is None:  # as 1e5
            _refuse(f"'{_short(text)}' mixes digits and letters; write whole numbers in digits or words.")
        if mixed[2] not in _ORDINALS:  # 5kg is a number, the 5th is none
            found.append(Token("number", mixed[1], start, int(mixed[1])))
        found.append(Token("word", mixed[2], start + mixed.start(2)))
        return at + 1
    if text == "-" and _glued(pieces, at) and not (_numeric(pieces[at - 1]) and _numeric(pieces[at + 1])):
        return at + 1  # the hyphen of a compound, as in 9-year-old
    if text in "+-":
        kind = "sign"
        if text == "-" and at + 1 < len(pieces) and _numeric(pieces[at + 1]) and pieces[at + 1].start == start + 1:
            kind = "sign" if found and (found[-1].kind == "number" or found[-1].text == ")") else "negative"
        found.append(Token(kind, text, start))
        return at + 1
    found.append(Token("word" if text[-1].isalnum() else "mark", text, start))
    return at + 1


def _spelled(pieces: list[_Piece], at: int) -> tuple[int, int]:
    """The value of a number in words that starts here, and the place after it."""

    def word(place: int) -> str:
        return pieces[place].text if place < len(pieces) else ""

    value = NUMBERS.get(word(at), 1)
    at += word(at) != "hundred"
    if value >= 20:
        ahead = at + (word(at) == "-" and _glued(pieces, at))
        if 1 <= NUMBERS.get(word(ahead), 0) <= 9:
            value, at = value + NUMBERS[word(ahead)], ahead + 1
    if word(at) == "hundred":
        value, at = 100 * value, at + 1
        if word(at) in NUMBERS:
            value += 1  # more than a hundred: how much more is no matter
    return value, at


def _check(before: Token | None, token: Token, after: Token | None) -> None:
    """Refuse what is no sum of whole numbers 0 to 100."""
    text = token.text
    if token.kind == "word" and text not in _SPECIAL:
        return
    numbers = before is not None and after is not None and before.kind == after.kind == "number"
    strange = text == "x" or (token.kind == "mark" and text not in _PAUSES)
    if text in _OTHER_WORDS or text in _OTHER_SIGNS or (strange and numbers):
        _refuse(f"Only plus and minus can be decomposed; ask without '{_short(text)}'.")
    if text in _LARGE or (token.value is not None and token.value > LARGEST):
        _refuse(f"The number '{_short(text)}' is above {LARGEST}; use numbers from 0 to {LARGEST}.")
    if text == "point" and numbers:
        _refuse("A number with a decimal point cannot be read; use whole numbers.")
    operator = before is None or before.text in PLUS or before.text in MINUS
    unary = token.kind == "negative" or text == "negative" or (text in MINUS and operator)
    if unary and after is not None and after.kind == "number":
        _refuse("Negative numbers cannot be read; use whole numbers from 0 to 100.")
    if text == "(" and before is not None and operator:
        _refuse("Brackets after an operator cannot be decomposed; write the sum as a chain from left to right.")


def _glued(pieces: list[_Piece], at: int) -> bool:
    """Whether no space parts this piece from its neighbours, and both are words or numbers."""
    if not 0 < at < len(pieces) - 1:
        return False
    before, (_, start, end), after = pieces[at - 1 : at + 2]
    return before.end == start and end == after.start and before.text[-1].isalnum() and after.text[-1].isalnum()


def _numeric(piece: _Piece) -> bool:
    return piece.text.isdecimal() or piece.text in NUMBERS or piece.text == "hundred"


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}…"


def _refuse(sentence: str) -> NoReturn:
    raise RedxError(sentence)
