"""A sweep: one run for every combination of settings, compared on validation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from redx.composition.evaluation import predict
from redx.composition.summary import read_summary
from redx.data.dataset import Data
from redx.engine import Call, Engine, Plan, open_engine
from redx.errors import RedxError
from redx.io.files import write_bytes, write_json
from redx.io.reading import exists
from redx.report.page import check_packages
from redx.runs.folder import load
from redx.runs.grid import Cell, is_finished, make_cells, parse_grid
from redx.runs.pipeline import run_all
from redx.runs.reports import write_reports
from redx.tasks import get_task
from redx.training.datasets import split_validation
from redx.training.features import embed_split

NOTE = "Choose by validation; test figures are for reporting, not for choosing."


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes
    ----------
    folder
        The folder with one run folder per cell, sweep.json, sweep.md and report.html.
    content
        The content of sweep.json; its cells are ordered by validation, the best first.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def report(self) -> Path:
        """The page that compares the runs."""
        return self.folder / "report.html"


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
        The folder, and the figures of all runs. Runs are ordered by their accuracy on the validation examples for
        choices, under the rule that their models answer with; test figures play no part in the order.

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
        validation = opened.follow([_plan_validation(cell, opened) for cell in cells])
    described = [_describe(cell, accuracies) for cell, accuracies in zip(cells, validation, strict=True)]
    described.sort(key=lambda cell: -1.0 if cell["validation"] is None else cell["validation"], reverse=True)
    content = {
        "schema": 1,
        "task": task,
        "preset": preset,
        "seeds": list(cells[0].config.seeds),
        "grid": values,
        "order": "accuracy on validation, mean over seeds",
        "note": NOTE,
        "cells": described,
    }
    write_json(folder / "sweep.json", content)
    write_bytes(folder / "sweep.md", _to_markdown(content).encode())
    write_reports([folder / cell["folder"] for cell in described], folder)
    return Sweep(folder, content)


def _batches(cells: Sequence[Cell], size: int) -> Iterator[list[Cell]]:
    """Yield cells that run at the same time: with the same number of threads, and at most this many."""
    for _, group in itertools.groupby(cells, key=lambda cell: cell.config.threads):
        same = list(group)
        yield from (same[start : start + size] for start in range(0, len(same), size))


# --- the comparison


def _plan_validation(cell: Cell, engine: Engine) -> Plan[list[float | None]]:
    task, calls = get_task(cell.config.task), []
    for seed in cell.config.seeds:
        data = engine.share(task.load(cell.config, seed))
        calls.append(Call(validation_accuracy, (cell.folder.absolute(), seed, data)))
    return (yield calls)


def validation_accuracy(folder: Path, seed: int, data: Data) -> float | None:
    """Return the accuracy of a run's model on the validation examples for choices; None where there are none.

    The calibration examples, which set cut-offs, are not among them.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which of its seeds.
    data
        The data of this seed.
    """
    model = load(folder, seed)
    choices, _ = split_validation(data, model.config.ownership.calibration, seed)
    if not len(choices):
        return None
    split = embed_split(model.config, model.base, data.validation.only(choices))
    rule, bank_id = model.rule_and_bank()
    parts = model.parts_of(split.inputs, bank_id, split.labels, model.expert_index(split.domains))
    return float((predict(rule, parts, rule.weights(parts)) == split.labels).double().mean())


def _describe(cell: Cell, accuracies: Sequence[float | None]) -> dict[str, Any]:
    """Return the entry of a cell in sweep.json."""
    summary = read_summary(cell.folder / "summary.json")
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    rules = {name: rule for name, rule in summary["rules"].items() if "/" not in name}
    return {
        "folder": cell.folder.name,
        "settings": cell.settings,
        "validation": fmean(known) if known else None,
        "validation_by_seed": list(accuracies),
        "test": {
            name: {"accuracy": rule["accuracy"]["mean"], "any_router": rule["certified"].get("1")}
            for name, rule in rules.items()
        },
    }


def table(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a sweep's table: settings that vary, validation, test figures of three rules."""
    paths = [path for path, values in content["grid"].items() if len(values) > 1]
    rules = [rule for rule in ("base", "red", "moe") if any(rule in cell["test"] for cell in content["cells"])]
    columns = [*paths, "validation", *(f"test: {rule}" for rule in rules)]
    columns += ["test: red, any router"] if "red" in rules else []

    def number(value: float | None) -> str:
        return "—" if value is None else f"{value:.4f}"

    rows = []
    for cell in content["cells"]:
        values = [cell["settings"][path] for path in paths]
        words = [value if isinstance(value, str) else json.dumps(value) for value in values]
        figures = [cell["validation"], *(cell["test"].get(rule, {}).get("accuracy") for rule in rules)]
        figures += [cell["test"].get("red", {}).get("any_router")] if "red" in rules else []
        rows.append([*words, *map(number, figures)])
    return columns, rows


def _to_markdown(content: Mapping[str, Any]) -> str:
    """Return the page sweep.md."""
    columns, rows = table(content)
    seeds = ", ".join(map(str, content["seeds"]))
    lines = [f"# Sweep of {content['task']}, {content['preset']}, seeds {seeds}", "", NOTE, ""]
    cells = [columns, ["---"] * len(columns), *rows]
    lines += [f"| {' | '.join(word.replace('|', chr(92) + '|') for word in row)} |" for row in cells]
    return "\n".join(lines) + "\n"
