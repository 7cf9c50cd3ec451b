"""The grid of a sweep: settings with several values each, and one cell for every combination."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redx.composition.summary import read_summary
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io.files import to_safe_name
from redx.io.reading import exists
from redx.runs.folder import read_config
from redx.runs.options import parse_value
from redx.runs.parts import are_complete
from redx.runs.presets import configure

MAX_CELLS = 10_000
MAX_CELL_NAME = 80  # characters; longer names are cut and get a hash


@dataclass(frozen=True)
class Cell:
    """One combination of settings of a sweep.

    Attributes
    ----------
    settings
        The values of the settings that vary, by their dotted names.
    config
        All settings of the run.
    folder
        The run folder.
    """

    settings: dict[str, Any]
    config: RunConfig
    folder: Path


def parse_grid(grid: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of every setting of a grid, by its dotted name.

    Examples
    --------
    >>> parse_grid(["router.hidden=32,64", "encoding.blocks=[1,2],[3]"])
    {'router.hidden': [32, 64], 'encoding.blocks': [[1, 2], [3]]}
    """
    values: dict[str, list[Any]] = {}
    for assignment in grid:
        path, separator, text = assignment.partition("=")
        path = path.strip()
        if not separator or not path or not text.strip():
            raise RedxError(f"{assignment!r} sets nothing; write --set NAME=VALUE,VALUE, such as router.hidden=32,64.")
        if path in ("seeds", "task", "preset"):
            raise RedxError(f"A sweep cannot vary '{path}'; give seeds with --seed, and one task and preset.")
        if path in values:
            raise RedxError(f"The setting '{path}' is given twice; write all its values in one --set.")
        values[path] = [parse_value(word) for word in split_values(text)]
        words = [json.dumps(value, sort_keys=True) for value in values[path]]
        if len(set(words)) < len(words):
            raise RedxError(f"The setting '{path}' has the same value twice; leave one out.")
    return values


def split_values(text: str) -> list[str]:
    """Return the values in a text with commas between them; commas in brackets or quotes belong to a value.

    Examples
    --------
    >>> split_values('[1,2],[3]')
    ['[1,2]', '[3]']
    """
    pieces, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character in "[{") - (character in "]}")
        if character == "," and not quoted and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def make_cells(
    task: str,
    preset: str,
    values: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None,
    folder: Path,
    changes: Mapping[str, Any],
) -> list[Cell]:
    """Return one cell for every combination of values; all are checked before any is run."""
    cells: list[Cell] = []
    for combination in itertools.product(*values.values()):
        settings = dict(zip(values, combination, strict=True))
        assignments = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
        config = configure(task, preset, assignments, seeds=seeds, **changes)
        if any(config == cell.config for cell in cells):
            raise RedxError(f"Two combinations give the same settings ({', '.join(assignments)}); leave one out.")
        cells.append(Cell(settings, config, folder / cell_name(settings)))
        if len(cells) > MAX_CELLS:
            raise RedxError(f"This grid has more than {MAX_CELLS:,} combinations; give fewer values.")
    return cells


def cell_name(settings: Mapping[str, Any]) -> str:
    """Return the name of the run folder of a combination; it does not depend on the rest of the grid.

    Examples
    --------
    >>> cell_name({"router.hidden": 32, "router.shape": "mlp"})
    'router.hidden=32,router.shape=mlp'
    """
    words = [value if isinstance(value, str) else json.dumps(value) for value in settings.values()]
    text = ",".join(f"{path}={word}" for path, word in zip(settings, words, strict=True)) or "default"
    safe = to_safe_name(text)
    if safe == text and len(safe) <= MAX_CELL_NAME:
        return safe
    return f"{safe[:MAX_CELL_NAME].strip(' .')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_finished(cell: Cell) -> bool:
    """Return whether a cell has been run to its end with these settings and seeds."""
    if not exists(cell.folder / "summary.json") or not exists(cell.folder / "report.html"):
        return False
    try:
        seeds = read_summary(cell.folder / "summary.json")["seeds"]
        same = read_config(cell.folder) == cell.config and seeds == list(cell.config.seeds)
    except (RedxError, KeyError):
        return False
    return same and all(are_complete(cell.folder, seed) for seed in cell.config.seeds)
