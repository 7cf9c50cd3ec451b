"""TOML files from outside: of a bounded size, and one sentence with the line of a mistake."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.io.reading import guarded, read_text

TOML_BYTES = 2**20  # size of the largest TOML file


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Parameters
    ----------
    path
        The file, in UTF-8.

    Returns
    -------
    dict
        Values and tables by name.

    Raises
    ------
    RedxError
        If there is no such file, or it is too large, no UTF-8 or no TOML.
    """
    text = read_text(path, TOML_BYTES)
    with guarded(path, "is no TOML file", "write NAME = VALUE in each line"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RedxError(f"{path} is no TOML: {str(error)[:200]}; correct it there.") from error
