"""The verb `redx sweep`: a grid of settings over seeds, compared on choice examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import Address, AsJson, EngineName, about, print_json, say, show_table


def sweep(
    task: Annotated[str, typer.Argument(help="task to run; `redx list` prints all tasks", show_default=False)],
    grid: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE,…", help="a setting and its values; repeatable: all combinations"),
    ] = None,
    preset: Annotated[str, typer.Option(help=about("preset"))] = "default",
    seed: Annotated[list[int] | None, typer.Option(help=about("seeds"), show_default="0")] = None,
    banks: Annotated[str, typer.Option("--run", help="banks to train: red, moe or all")] = "all",
    out: Annotated[Path | None, typer.Option(help="folder of the sweep", show_default="sweeps/TASK")] = None,
    engine: EngineName = "local",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Run every combination of some settings, and compare the runs on choice examples.

    Every combination is a run folder of its own. An interrupted sweep continues with the same command, and more values
    or seeds can be added. Settings are named as in config.json; a list in brackets is one value.

    Example: `redx sweep toy --preset quick --set router.hidden=32,64 --set risk=0.05,0.1 --seed 0 --seed 1`
    """
    check_grid(task, preset, grid or [])
    from redx.runs import sweep as sweeping

    finished = sweeping.sweep(task, preset, grid or [], seed, out, engine, address, run=banks)
    if as_json:
        return print_json(finished.content)
    columns, rows = sweeping.table(finished.content)
    show_table(columns, rows, f"{task}, {preset}: {len(rows)} runs on choice examples, the best first")
    columns, rows = sweeping.best_table(finished.content)
    if rows:
        show_table(columns, rows, f"{finished.content['cells'][0]['folder']}: the first run on the test split")
    say("", sweeping.NOTE, f"table: {finished.folder / 'sweep.md'}", f"report: {finished.report}")


def check_grid(task: str, preset: str, grid: list[str]) -> None:
    """Refuse an unknown task, preset or setting before anything slow is imported."""
    from redx.runs.options import apply_assignment
    from redx.tasks import get_preset

    settings = get_preset(task, preset).model_dump() | {"task": task}
    for assignment in grid:
        if "=" in assignment and assignment.partition("=")[0].strip() not in ("seeds", "task", "preset"):
            apply_assignment(settings, assignment)
