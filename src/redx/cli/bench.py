"""The verb `bench`: speed against opponents on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import AsJson, print_json, say, show_table


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="row to measure, repeatable: encode, compose, train, sweep, calibrate, certify, estimator, "
            "start or answer",
            show_default="all",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(help="repetitions; in each of them every side runs once")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, to try it; the figures mean little")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="finished run that reads texts, for start and answer", show_default="a small one"),
    ] = None,
    backbone: Annotated[str, typer.Option(help="language model of encode, train, start and answer")] = "minilm-l6",
    composed_backbone: Annotated[str, typer.Option(help="language model of compose")] = "smollm2-135m",
    as_json: AsJson = False,
) -> None:
    """Measure redx and its opponents in turn; print the ratio of times with its spread.

    Compare ratios, not seconds: both sides of a ratio are measured within the same moments of the same machine.

    Example: `redx bench --only sweep --only certify --quick`
    """
    from redx.bench.rows import bench_rows, describe_bench
    from redx.bench.timing import BenchRow, BenchSettings

    settings = BenchSettings(repeat, quick, backbone, composed_backbone, run)
    rows: list[BenchRow] = []
    for row in bench_rows(only or (), settings):
        rows.append(row)
        say(f"{row.name}: {row.ratio:.3g} ({row.low:.3g}-{row.high:.3g})", error=True)
    if as_json:
        return print_json(describe_bench(rows))
    cells = [
        [
            row.name,
            f"{row.ours:.4g}",
            ", ".join(f"{name} {seconds:.4g}" for name, seconds in row.opponents.items()),
            f"{row.ratio:.3g}",
            f"{row.low:.3g}-{row.high:.3g}",
        ]
        for row in rows
    ]
    show_table(["row", "ours (s)", "opponents (s)", "ratio", "spread"], cells, "redx bench")
    for row in rows:
        say(f"{row.name}: {row.about}.", *(f"  {name} {problem}." for name, problem in row.missing.items()))
