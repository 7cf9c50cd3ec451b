"""Divides a question into tokens: words, numbers, signs and marks, or says in one sentence why it cannot be read.

Text is only compared with lists of words; nothing in it is evaluated.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple, NoReturn

from redx.errors import RedxError

LONGEST = 2_000  # characters of a question
LARGEST = 100  # the largest number

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_UNITS += " seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: value for value, word in enumerate(_UNITS.split())}
NUMBERS |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}

PLUS = frozenset({"+", "plus"})
MINUS = frozenset({"-", "minus"})
_LARGE = frozenset(["hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion"])
_PAUSES = frozenset(".,;:!?()[]'\"…“”„«»=")  # marks between numbers that are no operators
_OTHER_SIGNS = frozenset("×÷*/^%√∛∜·∙⋅∗∕⁄‰±∓∑∏∫")
_OTHER = """
times multiply multiplies multiplied multiplying multiplication product divide divides divided dividing division
quotient ratio percent percentage square squared squares cube cubed root sqrt power exponent factorial modulo mod
remainder double doubles doubled doubling triple triples tripled quadruple twice thrice half halve halves halved
quarter quarters average logarithm log
"""
_OTHER_WORDS = frozenset(_OTHER.split())
_SPECIAL = _OTHER_WORDS | _LARGE | {"x", "point", "negative", "minus"}  # words that `_check` may refuse
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
# characters with the same meaning; em dashes separate sentences
_SAME = str.maketrans({"−": "-", "‘": "'", "’": "'", "—": ",", "―": ",", "٫": ".", "٬": ","})
_PIECE = re.compile(r"[^\W_]+|'[^\W\d_]+|\S")
_FRACTION = re.compile(r"\d+[.,]\d+(?:[.,]\d+)*|(?<![^\s(+-])\.\d+")
_MIXED = re.compile(r"([0-9]+)([^\W\d_]+)")


class Token(NamedTuple):
    """A piece of the text.

    Parameters
    ----------
    kind
        "word", "number", "sign" (+ or -) or "mark" (punctuation).
    text
        The piece in lower case.
    start
        Its position in the text as given.
    value
        The value of a number; None for any other token.
    """

    kind: str
    text: str
    start: int
    value: int | None = None


class _Piece(NamedTuple):
    """A run of letters and digits, or one other character, with its position in the normalised text."""

    text: str
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Return the tokens of a question, at least two of them numbers.

    Raises
    ------
    RedxError
        Where the text is no sum of whole numbers 0 to 100.

    Examples
    --------
    >>> [token.value for token in tokens("Twelve plus 5") if token.kind == "number"]
    [12, 5]
    """
    plain, positions = _normalise(text)
    if match := _FRACTION.search(plain):
        _refuse(f"'{_short(match[0])}' is not a whole number; write numbers without a point or comma.")
    pieces = [_Piece(match[0], match.start(), match.end()) for match in _PIECE.finditer(plain)]
    read: list[Token] = []
    index = 0
    while index < len(pieces):
        index = _read_token(pieces, index, read)
    if positions is not None:
        read = [token._replace(start=positions[token.start]) for token in read]
    for before, token, after in zip([None, *read], read, [*read[1:], None], strict=False):
        _check(before, token, after)
    count = sum(token.kind == "number" for token in read)
    if count == 0:
        _refuse("The question has no number; ask for a sum such as '12 plus 5 minus 3'.")
    if count == 1:
        _refuse("The question has only one number; ask for a sum of at least two, such as '12 plus 5'.")
    return read


def _normalise(text: str) -> tuple[str, list[int] | None]:
    """Return the text in plain digits, signs and small letters, and the positions its characters came from.

    The positions are None where they did not change.
    """
    if len(text) > LONGEST:
        _refuse(f"The question has {len(text):,} characters; ask one of at most {LONGEST:,}.")
    if not text.strip():
        _refuse("The question is empty; ask for a sum such as '12 plus 5 minus 3'.")
    if text.isascii() and text.isprintable():
        return text.casefold(), None
    letters: list[str] = []
    positions: list[int] = []
    for position, letter in enumerate(text):
        kind = unicodedata.category(letter)
        if kind[0] == "C" and letter not in "\t\n\r":
            _refuse("The question has control or invisible characters; remove them and ask again.")
        if kind in ("No", "Nl"):  # as 5², ½ or Ⅷ
            _refuse(f"'{letter}' is not a plain digit; write whole numbers in digits or words.")
        for folded in unicodedata.normalize("NFKC", letter).translate(_SAME).casefold():
            digit = unicodedata.decimal(folded, None)
            dash = unicodedata.category(folded) == "Pd"
            letters.append("-" if dash else folded if digit is None else str(digit))
            positions.append(position)
    return "".join(letters), positions


def _read_token(pieces: list[_Piece], index: int, read: list[Token]) -> int:
    """Append the token at this piece, if there is one, to `read`, and return the index of the next piece."""
    text, start, _ = pieces[index]
    if text.isalpha() and text not in NUMBERS and text != "hundred":
        read.append(Token("word", text, start))
        return index + 1
    if text.isdecimal():
        read.append(Token("number", text, start, int(text)))
        return index + 1
    if text in NUMBERS or text == "hundred":
        value, index = _read_spelled(pieces, index)
        read.append(Token("number", text, start, value))
        return index
    if text[0].isdecimal():
        mixed = _MIXED.fullmatch(text)
        if mixed is None:  # as 1e5
            _refuse(f"'{_short(text)}' mixes digits and letters; write whole numbers in digits or words.")
        if mixed[2] not in _ORDINALS:  # 5kg is a number, the 5th is none
            read.append(Token("number", mixed[1], start, int(mixed[1])))
        read.append(Token("word", mixed[2], start + mixed.start(2)))
        return index + 1
    if (
        text == "-"
        and _is_glued(pieces, index)
        and not (_is_numeric(pieces[index - 1]) and _is_numeric(pieces[index + 1]))
    ):
        return index + 1  # the hyphen of a compound, as in 9-year-old
    if text in "+-":
        following = pieces[index + 1] if index + 1 < len(pieces) else None
        touches_number = following is not None and _is_numeric(following) and following.start == start + 1
        follows_number = bool(read) and (read[-1].kind == "number" or read[-1].text == ")")
        negative = text == "-" and touches_number and not follows_number
        read.append(Token("negative" if negative else "sign", text, start))
        return index + 1
    read.append(Token("word" if text[-1].isalnum() else "mark", text, start))
    return index + 1


def _read_spelled(pieces: list[_Piece], index: int) -> tuple[int, int]:
    """Return the value of the number in words that starts at this piece, and the index after it."""

    def word(position: int) -> str:
        return pieces[position].text if position < len(pieces) else ""

    value = NUMBERS.get(word(index), 1)
    index += word(index) != "hundred"
    if value >= 20:
        ahead = index + (word(index) == "-" and _is_glued(pieces, index))
        if 1 <= NUMBERS.get(word(ahead), 0) <= 9:
            value, index = value + NUMBERS[word(ahead)], ahead + 1
    if word(index) == "hundred":
        value, index = 100 * value, index + 1
        if word(index) in NUMBERS:
            value += 1  # above a hundred, which is refused whatever the exact value
    return value, index


def _check(before: Token | None, token: Token, after: Token | None) -> None:
    """Refuse a token, given its neighbours, that no sum of whole numbers 0 to 100 contains."""
    text = token.text
    if token.kind == "word" and text not in _SPECIAL:
        return
    between_numbers = before is not None and after is not None and before.kind == after.kind == "number"
    unknown = text == "x" or (token.kind == "mark" and text not in _PAUSES)
    if text in _OTHER_WORDS or text in _OTHER_SIGNS or (unknown and between_numbers):
        _refuse(f"Only plus and minus can be decomposed; ask without '{_short(text)}'.")
    if text in _LARGE or (token.value is not None and token.value > LARGEST):
        _refuse(f"The number '{_short(text)}' is above {LARGEST}; use numbers from 0 to {LARGEST}.")
    if text == "point" and between_numbers:
        _refuse("A number with a decimal point cannot be read; use whole numbers.")
    after_operator = before is None or before.text in PLUS or before.text in MINUS
    unary = token.kind == "negative" or text == "negative" or (text in MINUS and after_operator)
    if unary and after is not None and after.kind == "number":
        _refuse("Negative numbers cannot be read; use whole numbers from 0 to 100.")
    if text == "(" and before is not None and after_operator:
        _refuse("Brackets after an operator cannot be decomposed; write the sum as a chain from left to right.")


def _is_glued(pieces: list[_Piece], index: int) -> bool:
    """Return whether no space separates this piece from its neighbours, and both are words or numbers."""
    if not 0 < index < len(pieces) - 1:
        return False
    before, (_, start, end), after = pieces[index - 1 : index + 2]
    return before.end == start and end == after.start and before.text[-1].isalnum() and after.text[-1].isalnum()


def _is_numeric(piece: _Piece) -> bool:
    return piece.text.isdecimal() or piece.text in NUMBERS or piece.text == "hundred"


def _short(text: str) -> str:
    """Return a text of at most 20 characters for an error."""
    return text if len(text) <= 20 else f"{text[:17]}…"


def _refuse(sentence: str) -> NoReturn:
    raise RedxError(sentence)
