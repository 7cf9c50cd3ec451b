"""Text from outside on its way to a terminal or a log: control characters are shown, never obeyed."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (such as U+202E), surrogates, unassigned


def printable(text: str) -> str:
    """Return text in one line, whose control, format and unassigned characters are written as escapes.

    Parameters
    ----------
    text
        Any text: a label, a file name, an error message.

    Returns
    -------
    str
        The text, in which for example an escape character is written as backslash, x, 1, b.

    Examples
    --------
    >>> printable("red" + chr(27) + "[31m") == "red" + chr(92) + "x1b[31m"
    True
    """
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
