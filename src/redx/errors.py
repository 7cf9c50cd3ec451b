"""The error that redx raises for wrong input, and how text from outside is written into messages."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format (such as U+202E), surrogates, unassigned


class RedxError(Exception):
    """An error that the user can correct; its message says what is wrong and what to do.

    The command line prints the message and exits with code 2.

    Parameters
    ----------
    message
        One sentence. Control characters in it, which names and labels of others may bring along, are escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class RefusedError(RedxError):
    """An expert was measured and not taken; nothing was changed. The command line exits with code 1."""


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
