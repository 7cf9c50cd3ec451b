"""What the verbs of the command line share: help from settings, tables, JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from redx.config import RunConfig, StrictConfig


def about(setting: str, settings: type[StrictConfig] = RunConfig) -> str:
    """The help of a setting stands beside its field."""
    return settings.model_fields[setting].description or setting


Folder = Annotated[Path, typer.Argument(help="folder of a finished run", metavar="RUN", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print machine-readable output on stdout")]
Routing = Annotated[str | None, typer.Option(help="router (the trained one) or keys (the experts' own scores)")]
OneSeed = Annotated[int | None, typer.Option(help="seed of the run", show_default="the first")]


MAIN_RULES = {  # what `redx run` prints, with a word on each
    "base": "the base alone",
    "red": "base + routed residuals",
    "sum": "base + all residuals, no router",
    "fixed": "base + mean residual",
    "moe": "standalone heads, routed",
    "uniform": "standalone heads, averaged",
    "global": "one head on all data pooled",
    "oracle": "standalone heads, perfect routing",
}


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1))


def show_table(columns: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """A table as wide as the terminal; figures to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = index > 0 and all(row[index][:1].isdigit() or row[index] in ("", "—") for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def show_main_rules(summary: dict[str, Any]) -> None:
    """Print the rules that most people compare: clean, with always a wrong expert, and under any router."""
    rules = summary["rules"]
    rows = []
    for name in (name for name in MAIN_RULES if name in rules):
        entry = rules[name]
        wrong, worst = entry["noise"].get("swap", {}).get("1"), entry["certified"].get("1")
        figures = [entry["accuracy"]["mean"], wrong, worst]
        rows.append([name, MAIN_RULES[name], *("—" if value is None else f"{value:.4f}" for value in figures)])
    show_table(["rule", "", "clean", "wrong expert", "any router"], rows, _title(summary))


def show_rules(summary: dict[str, Any], noisy: bool = False) -> None:
    """The main figures of every rule."""
    rules: dict[str, Any] = summary["rules"]
    rules = {
        name: entry
        for name, entry in rules.items()
        if "/" in name or not any(key.startswith(f"{name}/") for key in rules)
    }
    epsilons = list(next(iter(rules.values()))["certified"])[-1:]
    noises = [(kind, level) for kind, curve in next(iter(rules.values()))["noise"].items() for level in curve]
    noises = (
        noises if noisy and len(noises) <= 6 else [pair for pair in noises if pair in (("swap", "1"), ("blur", "1"))]
    )
    columns = ["rule", "accuracy", "95 %", "worst domain", *(f"certified ε={e}" for e in epsilons)]
    columns += [f"{kind} {level}" for kind, level in noises] + ["harm", "help"]
    rows = []
    for name, entry in rules.items():
        share = entry["accuracy"]
        row = [name, f"{share['mean']:.4f}", f"{share['low']:.4f}-{share['high']:.4f}", f"{entry['worst_domain']:.4f}"]
        row += [f"{entry['certified'][e]:.4f}" for e in epsilons]
        row += [f"{entry['noise'][kind][level]:.4f}" for kind, level in noises]
        rows.append([*row, f"{entry['harm']:.4f}", f"{entry['help']:.4f}"])
    show_table(columns, rows, _title(summary))


def _title(summary: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    return f"{summary['task']}, seed{'s' * (len(summary['seeds']) > 1)} {seeds}: accuracy on the test split"
