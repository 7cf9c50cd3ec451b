"""Checks that need no torch, so that a typing error is answered at once: paths, names and numbers of options.

Whatever passes is checked again where it is used, which knows more.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from redx.errors import RedxError
from redx.registry import installed_plugins, unknown_name

# Names that redx itself registers in composition.rules and composition.noise, which import torch.
RULES = ("base", "statistics", "red", "fixed", "sum", "red-oracle", "moe", "uniform", "oracle", "global", "average")
NOISES = ("swap", "blur", "jitter", "drop", "permute")
NO_RUN = "give the folder of a finished run, as made by `redx run`"
SHOWN = 10  # names that a message lists


def run_folder(ctx: typer.Context, value: Any) -> Any:
    """Return the folder of a run, or refuse one that does not exist and name one that is meant."""
    if value is None or ctx.resilient_parsing or os.path.lexists(value):
        return value
    near = similar_run(Path(value))
    hint = f" (did you mean {near}?)" if near else ""
    raise RedxError(f"There is no {Path(value) / 'config.json'}{hint}; {NO_RUN}.")


def similar_run(folder: Path) -> Path | None:
    """Return a run beside this folder, or in `runs`, whose name is like its name; None where there is none."""
    for parent in dict.fromkeys((folder.parent, Path("runs"))):
        try:
            names = [one.parent.name for one in parent.glob("*/config.json")]
        except OSError:
            continue
        if near := difflib.get_close_matches(folder.name, names, n=1):
            return parent / near[0]
    return None


def run_folders(ctx: typer.Context, value: list[Path] | None) -> list[Path] | None:
    """Return folders of runs, of which every one exists."""
    for folder in value or ():
        run_folder(ctx, folder)
    return value


def present(ctx: typer.Context, option: typer.CallbackParam, value: Any) -> Any:
    """Return a file or folder that a command reads, or several, or refuse what is not there."""
    name = option.opts[0] if option.opts[0].startswith("-") else ""
    for path in () if ctx.resilient_parsing else value if isinstance(value, list) else [value]:
        if path is not None and not os.path.lexists(path):
            where = f" with {name} FILE" if name else ""
            raise RedxError(f"There is no file {path}{_similar_file(Path(path))}; give another{where}.")
    return value


def expert(ctx: typer.Context, value: Any) -> Any:
    """Return the folder of an expert, or refuse one that is not there."""
    if value is None or ctx.resilient_parsing or os.path.lexists(value):
        return value
    raise RedxError(
        f"The expert {value} is not there{_similar_file(Path(value))}; give a folder with expert.json in it."
    )


def table(ctx: typer.Context, value: Any) -> Any:
    """Return a file of examples, or several, or refuse one that does not exist."""
    for path in () if ctx.resilient_parsing else value if isinstance(value, list) else [value]:
        if path is not None:
            check_data(path)
    return value


def check_data(path: Any) -> None:
    """Refuse a file of examples that does not exist, and name one that is meant."""
    if not os.path.lexists(path):
        hint = _similar_file(Path(path))
        raise RedxError(f"There is no file {path}{hint}; give the path of a table with --data FILE.")


def _similar_file(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""


def rules(ctx: typer.Context, value: Any) -> Any:
    """Return the name of a rule, RULE or RULE/BANK, or several, or refuse one that nobody registers."""
    _check_names(ctx, "rule", value, RULES)
    return value


def noises(ctx: typer.Context, value: Any) -> Any:
    """Return kinds of noise, or refuse one that nobody registers."""
    _check_names(ctx, "noise", value, NOISES)
    return value


def _check_names(ctx: typer.Context, kind: str, value: Any, known: Sequence[str]) -> None:
    if "torch" in sys.modules:  # the registry itself is at hand, with what a program registered
        return
    for name in () if value is None or ctx.resilient_parsing else value if isinstance(value, list) else [value]:
        first = name.partition("/")[0]
        if first not in known and not installed_plugins(tuple(sys.path)):  # a plugin may bring it
            raise unknown_name(kind, first, known)


def shares(ctx: typer.Context, option: typer.CallbackParam, value: Any) -> Any:
    """Return a number, or several, or refuse one that does not lie between 0 and 1."""
    for number in value if isinstance(value, list) else [value]:
        if number is not None and not 0 <= number <= 1:
            raise RedxError(f"{option.opts[0]} lies between 0 and 1, not {number:g}; choose one such as 0.25.")
    return value


def check_expert(folder: Path, name: str, seed: int | None) -> None:
    """Refuse the name of an expert that a run does not have; a run without folders of experts is not judged."""
    seeds = [folder / f"seed-{seed}"] if seed is not None else sorted(folder.glob("seed-*"))
    names = sorted({one.parent.name for seed_folder in seeds for one in seed_folder.glob("experts/*/expert.json")})
    if names and name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        more = " …" if len(names) > SHOWN else ""
        raise RedxError(f"There is no expert {name!r}{hint}; choose from {', '.join(names[:SHOWN])}{more}.")
