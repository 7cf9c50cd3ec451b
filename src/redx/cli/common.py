"""What the verbs share: help texts from settings, tables, JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from redx.cli import early
from redx.config import RunConfig, StrictConfig
from redx.errors import RedxError, printable
from redx.io import progress

PIPED = 120  # cells of a line where there is no terminal and no $COLUMNS


def about(setting: str, settings: type[StrictConfig] = RunConfig) -> str:
    """Return the help of a setting, which is the description of its field."""
    return settings.model_fields[setting].description or setting


Folder = Annotated[
    Path,
    typer.Argument(help="folder of a finished run", metavar="RUN", show_default=False, callback=early.run_folder),
]
RuleName = Annotated[str | None, typer.Option(help="rule, or rule/bank", show_default="red", callback=early.rules)]
AsJson = Annotated[bool, typer.Option("--json", help="print machine-readable output on stdout")]
Routing = Annotated[str | None, typer.Option(help="router (the trained one) or keys (the experts' own scores)")]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="where the work is done; the numbers are the same")
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster: auto or HOST:PORT; without it, Ray is started on this machine")
]
OneSeed = Annotated[int | None, typer.Option(help="seed of the run", show_default="the first")]


def print_json(value: object) -> None:
    """Print a value as JSON on stdout."""
    progress.clear_note()
    typer.echo(json.dumps(value, indent=1))


def say(*lines: str, error: bool = False) -> None:
    """Print lines, in which control characters are escaped; on stderr where they report an error.

    A terminal shows them in lines that end at words.
    """
    from redx.cli.layout import wrap

    progress.clear_note()
    stream = sys.stderr if error else sys.stdout
    for line in lines:
        text = printable(line)
        typer.echo(wrap(text, get_terminal_size().columns) if stream.isatty() else text, err=error)


def show_table(
    columns: list[str],
    rows: list[list[str]],
    title: str | None = None,
    *,
    stacked: bool = False,
    spare: Sequence[str] = (),
) -> None:
    """Print a table no wider than the terminal, with numbers aligned to the right and no cell cut.

    Parameters
    ----------
    columns, rows, title
        Titles of the columns, cells by row, and the title above.
    stacked
        Break the titles of columns into lines of few characters.
    spare
        Columns that are left out, one after the other, where the terminal is too narrow.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from redx.cli.layout import is_numeric, lay_out

    columns, rows = [printable(name) for name in columns], [[printable(cell) for cell in row] for row in rows]
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED)
    layouts, left_out = lay_out(columns, rows, console.width, stacked, spare)
    progress.clear_note()
    for layout in layouts:
        table = Table(title=Text(printable(title)) if title else None, title_justify="left")
        for index, heading in zip(layout.columns, layout.headings, strict=True):
            numeric = index > 0 and is_numeric([row[index] for row in rows])
            table.add_column(Text(heading), justify="right" if numeric else "left", no_wrap=True)
        for row in layout.rows:
            table.add_row(*map(Text, row))  # not a str, which rich would read as markup
        console.print(table)
        title = None
    if left_out:
        say(f"A wider terminal also shows: {', '.join(left_out)}.")


def show_main_rules(summary: dict[str, Any]) -> None:
    """Print the rules that most people compare: clean, with always a wrong expert, and under any router."""
    from redx.report.short import COLUMN, WITHOUT_OWN_HINT, hint_of, short_rules, without_own

    rules, left_out = summary["rules"], without_own(summary)
    rows = []
    for name in short_rules(rules):
        entry = rules[name]
        wrong, worst = entry["noise"].get("swap", {}).get("1"), entry["certified"].get("1")
        figures = [entry["accuracy"]["mean"], wrong, worst]
        row = [name, hint_of(name, rules), entry.get("shares") or "—"]
        rows.append([*row, *("—" if value is None else f"{value:.4f}" for value in figures)])
        if left_out is not None and left_out[0] == name:
            rows.append([f"{name}, without", WITHOUT_OWN_HINT, row[2], f"{left_out[1]:.4f}", "—", "—"])
    show_table(["rule", "", COLUMN, "clean", "wrong expert", "any router"], rows, _title(summary), stacked=True)
    show_perplexity(summary)


def show_perplexity(summary: dict[str, Any]) -> None:
    """Print the perplexity of a language model by domain; nothing for other models."""
    from redx.report.tables import perplexity_table, requests_table

    by_domain = perplexity_table(summary["rules"], summary.get("domains", []))
    for table in (by_domain, requests_table(summary.get("requests", {}))):
        if table.rows:
            show_table(list(table.columns), [list(map(str, row)) for row in table.rows], table.title)


def show_brief(summary: dict[str, Any]) -> None:
    """Print few figures: bases, RED and the mixture of experts, these also under any router, and all data pooled."""
    from redx.composition.rules import RULES
    from redx.report.short import COLUMN, WITHOUT_OWN, compared_rules, from_statistics, phrase_of, without_own

    rules, left_out = summary["rules"], without_own(summary)
    names = ["base", "red", "moe", "global", *compared_rules(rules)]
    rows = []
    for name in sorted(names, key=lambda name: list(RULES).index(name.partition("/")[0])):
        entry, words = rules.get(name, {}), phrase_of(name, rules)
        words += ": sum of the owners' statistics" if name == "base" and from_statistics(rules) else ""
        figures = {words: entry.get("accuracy", {}).get("mean")}
        if name.startswith(("red", "moe")):
            figures[f"{words}, under any router"] = entry.get("certified", {}).get("1")
        if left_out is not None and left_out[0] == name:
            figures[f"{words}, {WITHOUT_OWN}"] = left_out[1]
        shares = entry.get("shares") or "—"
        rows += [[key, shares, "—" if value is None else f"{value:.4f}"] for key, value in figures.items()]
    show_table(["", COLUMN, "accuracy"], rows, _title(summary), stacked=True)


def show_rules(summary: dict[str, Any], noisy: bool = False) -> None:
    """Print the main figures of every rule with every bank; with few kinds of noise, all of them."""
    from redx.composition.summary import each_once
    from redx.report.short import COLUMN

    rules = each_once(summary["rules"])
    first = next(iter(rules.values()))
    epsilons = list(first["certified"])[-1:]
    losses = list(first.get("certified_loss", {}))[-1:]
    noises = [(kind, level) for kind, curve in first["noise"].items() for level in curve]
    if not noisy or len(noises) > 6:
        noises = [pair for pair in noises if pair in (("swap", "1"), ("blur", "1"))]
    noisy_columns = [f"{kind} {level}" for kind, level in noises]
    columns = ["rule", COLUMN, "accuracy", "95 %", "worst domain", *(f"certified ε={e}" for e in epsilons)]
    loss_columns = [f"log-loss ε={e}" for e in losses]
    columns += [*loss_columns, *noisy_columns, "harm", "help"]
    rows = []
    for name, entry in rules.items():
        accuracy = entry["accuracy"]
        interval = f"{accuracy['low']:.4f}-{accuracy['high']:.4f}"
        row = [name, entry.get("shares") or "—", f"{accuracy['mean']:.4f}", interval, f"{entry['worst_domain']:.4f}"]
        row += [f"{entry['certified'][e]:.4f}" for e in epsilons]
        row += [_number(entry["certified_loss"].get(e)) for e in losses]
        row += [f"{entry['noise'][kind][level]:.4f}" for kind, level in noises]
        rows.append([*row, f"{entry['harm']:.4f}", f"{entry['help']:.4f}"])
    spare = ("95 %", "worst domain", "help", *reversed(noisy_columns), "harm", *loss_columns)
    show_table(columns, rows, _title(summary), stacked=True, spare=spare)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _title(summary: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    return f"{summary['task']}, seed{'s' * (len(summary['seeds']) > 1)} {seeds}: accuracy on the test split"


# --- values that are written NAME=VALUE


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
