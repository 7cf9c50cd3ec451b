"""Text from outside on its way to a terminal or a log: control characters are shown, never obeyed."""

from __future__ import annotations

import unicodedata

HARMLESS = {"\n", "\t"}  # in messages of several lines
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (such as U+202E), surrogates, unassigned


def printable(text: str) -> str:
    """Return text whose control, format and unassigned characters are written as escapes, such as `\\x1b`.

    Examples
    --------
    >>> print(printable("a\\x1b[31mb"))
    a\\x1b[31mb
    """
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in HARMLESS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
