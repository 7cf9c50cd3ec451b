"""Names of domains and experts: the order people expect, and what can be a folder on any disk."""

from __future__ import annotations

import re
import unicodedata

from redx.errors import RedxError

LONGEST = 100


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key to sort by: numbers in names count as numbers, so that 9 stands before 10."""
    pieces = re.split(r"([0-9]+)", name.casefold())
    return [(0, int(piece), "") if at % 2 else (1, 0, piece) for at, piece in enumerate(pieces) if piece], name


def fit(name: str) -> str:
    """The name as a folder may be called; most stay as they are."""
    plain = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", unicodedata.normalize("NFC", name))
    return plain[:LONGEST].strip(" .")


def check(name: str) -> str:
    """The name itself, if it can be that of a folder."""
    if not name or fit(name) != name:
        raise RedxError(
            f"An expert cannot be called {name[:LONGEST]!r}, which is no name of a folder; "
            "leave out slashes, dots at its ends and signs such as : * ? and keep it under a hundred letters."
        )
    return name
