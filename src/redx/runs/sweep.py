"""A sweep: a grid of settings, one run for every combination, compared on choice examples."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from redx.composition.certificate import certified_accuracy
from redx.composition.summary import read_summary
from redx.config import RunConfig
from redx.engine import Call, Plan, open_engine
from redx.errors import RedxError
from redx.io.files import to_safe_name, write_bytes, write_json
from redx.io.reading import exists
from redx.report.page import check_packages
from redx.runs.diff import SplitAnswers
from redx.runs.folder import load, read_config
from redx.runs.options import parse_value
from redx.runs.parts import are_complete
from redx.runs.pipeline import run_all
from redx.runs.plans import own_stages
from redx.runs.presets import configure
from redx.training.datasets import read_choices

MAX_CELLS = 10_000
MAX_CELL_NAME = 80  # characters; longer names are cut and get a hash
NOTE = "Runs are compared on choice examples, with cut-offs set on them; test figures are those of the first run alone."


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
        kept = read_config(cell.folder)
        same = kept.model_copy(update={"seeds": cell.config.seeds}) == cell.config and seeds == list(kept.seeds)
        same = same and set(cell.config.seeds) <= set(seeds)
    except (RedxError, KeyError):
        return False
    return same and all(are_complete(cell.folder, seed) for seed in cell.config.seeds)


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes
    ----------
    folder
        The folder with one run folder per cell, sweep.json and sweep.md.
    content
        The content of sweep.json; its cells are ordered by choice examples, the best first.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def report(self) -> Path:
        """The report of the best run."""
        return self.folder / self.content["cells"][0]["folder"] / "report.html"


def sweep(
    task: str,
    preset: str = "default",
    grid: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    out: Path | None = None,
    engine: str = "local",
    address: str | None = None,
    **changes: Any,
) -> Sweep:
    """Run a grid of settings over seeds; an interrupted sweep continues with the same call.

    Parameters
    ----------
    task, preset
        Name of a task, and of its settings.
    grid
        Settings with their values, such as `router.hidden=32,64`; every combination is one run. A list in brackets is
        one value.
    seeds
        Seeds of every run.
    out
        The folder of the sweep; `sweeps/TASK` by default.
    engine, address
        Where the work is done, as `redx.run` takes them.
    **changes
        Other settings, as `redx.runs.presets.configure` takes them.

    Returns
    -------
    Sweep
        The folder, and the figures of all runs on choice examples, under the rule that their models answer with and
        with cut-offs that are set on these examples. Runs are ordered by their accuracy there. Test figures are those
        of the first run alone.

    Examples
    --------
    >>> from redx.runs.sweep import sweep
    >>> sweep("toy", "quick", ["router.hidden=32,64"], seeds=[0, 1])  # doctest: +SKIP
    """
    check_packages()
    folder = Path(out or Path("sweeps") / task)
    values = parse_grid(grid)
    cells = make_cells(task, preset, values, seeds, folder, changes)
    if exists(folder) and not folder.is_dir():
        raise RedxError(f"{folder} is a file; choose another folder with --out.")
    with open_engine(engine, address, any(cell.config.device == "cuda" for cell in cells)) as opened:
        for batch in _batches([cell for cell in cells if not is_finished(cell)], opened.runs_at_once):
            run_all([(cell.config, cell.folder) for cell in batch], opened)
        figures = opened.follow([_plan_choice(cell) for cell in cells])
    described = [_describe(cell, known) for cell, known in zip(cells, figures, strict=True)]
    described.sort(key=lambda cell: cell["choice"]["accuracy"] if cell["choice"] else -1.0, reverse=True)
    content = {
        "schema": 1,
        "task": task,
        "preset": preset,
        "seeds": list(read_config(cells[0].folder).seeds),
        "grid": values,
        "order": "accuracy on choice examples, mean over seeds",
        "note": NOTE,
        "cells": described,
        "test": _test_figures(folder / described[0]["folder"]) if described[0]["choice"] else None,
    }
    write_json(folder / "sweep.json", content)
    write_bytes(folder / "sweep.md", _to_markdown(content).encode())
    return Sweep(folder, content)


def _batches(cells: Sequence[Cell], size: int) -> Iterator[list[Cell]]:
    """Yield cells that run at the same time: with the same number of threads, and at most this many."""
    for _, group in itertools.groupby(cells, key=lambda cell: cell.config.threads):
        same = list(group)
        yield from (same[start : start + size] for start in range(0, len(same), size))


# --- the comparison


def _plan_choice(cell: Cell) -> Plan[list[dict[str, float] | None]]:
    seeds = read_config(cell.folder).seeds
    if own_stages(cell.config):  # no classifier, whose answers would order the cells
        return [None] * len(seeds)
    return (yield [Call(choice_figures, (cell.folder.absolute(), seed)) for seed in seeds])


def choice_figures(folder: Path, seed: int) -> dict[str, float] | None:
    """Return `accuracy` and `any_router` of a run's model on its choice examples; None where there are none.

    The cut-off is set on these examples too, so calibration examples play no part in the figures.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds.
    """
    model = load(folder, seed)
    path = folder / f"seed-{seed}" / "features.safetensors"
    choices = read_choices(path, model.config.ownership.calibration, seed)
    if not len(choices):
        return None
    answers = SplitAnswers.on_choices(model, choices)
    correct = answers.correct()
    any_router = certified_accuracy(answers.certified.radius, correct, 1.0)
    return {"accuracy": float(correct.double().mean()), "any_router": any_router}


def _describe(cell: Cell, by_seed: Sequence[dict[str, float] | None]) -> dict[str, Any]:
    """Return the entry of a cell in sweep.json."""
    known = [figures for figures in by_seed if figures is not None]
    means = {name: fmean(figures[name] for figures in known) for name in known[0]} if known else None
    return {"folder": cell.folder.name, "settings": cell.settings, "choice": means, "choice_by_seed": list(by_seed)}


def _test_figures(folder: Path) -> dict[str, dict[str, float | None]]:
    """Return the figures of every rule of a run on its test split."""
    rules = read_summary(folder / "summary.json")["rules"]
    return {
        name: {"accuracy": rule["accuracy"]["mean"], "any_router": rule["certified"].get("1")}
        for name, rule in rules.items()
        if "/" not in name
    }


def table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a sweep's table: settings that vary, and figures on choice examples."""
    paths = [path for path, values in content["grid"].items() if len(values) > 1]
    rows = []
    for cell in content["cells"]:
        values = [cell["settings"][path] for path in paths]
        words = [value if isinstance(value, str) else json.dumps(value) for value in values]
        figures = cell["choice"] or {}
        rows.append([*words, *map(_number, (figures.get("accuracy"), figures.get("any_router")))])
    return [*paths, "accuracy", "any router"], rows


def best_table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the test figures of a sweep's best run, for three rules."""
    test = content["test"] or {}
    names = [name for name in ("base", "red", "moe") if name in test]
    rows = [[name, _number(test[name]["accuracy"]), _number(test[name]["any_router"])] for name in names]
    return ["rule", "accuracy", "any router"], rows


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _to_markdown(content: Mapping[str, Any]) -> str:
    """Return the page sweep.md."""
    seeds = ", ".join(map(str, content["seeds"]))
    lines = [f"# Sweep of {content['task']}, {content['preset']}, seeds {seeds}", "", NOTE]
    for title, (columns, rows) in (
        ("On choice examples", table(content)),
        (f"{content['cells'][0]['folder']} on the test split", best_table(content)),
    ):
        if rows:
            cells = [columns, ["---"] * len(columns), *rows]
            lines += ["", f"## {title}", ""]
            lines += [f"| {' | '.join(word.replace('|', chr(92) + '|') for word in row)} |" for row in cells]
    return "\n".join(lines) + "\n"
