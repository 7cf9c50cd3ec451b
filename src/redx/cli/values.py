"""Values on the command line that are written NAME=VALUE."""

from __future__ import annotations

import math
from pathlib import Path

from redx.errors import RedxError


def read_weights(words: list[str]) -> dict[str, float]:
    """Return weights by name from words such as `python=0.5`."""
    weights = {}
    for name, value in _pairs(words, "--weight"):
        try:
            weights[name] = float(value)
        except ValueError as error:
            raise RedxError(f"--weight {name}={value} has no number after the sign; give one such as 0.5.") from error
        if not math.isfinite(weights[name]):
            raise RedxError(f"--weight {name}={value} is NaN or infinite; give a number between 0 and 1.")
    return weights


def read_folders(words: list[str]) -> dict[str, Path]:
    """Return folders by name from words such as `python=my-lora`."""
    return {name: Path(value) for name, value in _pairs(words, "--adapter")}


def _pairs(words: list[str], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        name, sign, value = word.partition("=")
        if not (name and sign and value):
            raise RedxError(f"{flag} {word!r} is not NAME=VALUE; write both, with the sign between them.")
        if name in dict(pairs):
            raise RedxError(f"{flag} names {name!r} twice; give every name once.")
        pairs.append((name, value))
    return pairs
