"""The verb `evaluate`: other rules, noise or ε for a finished run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli import early
from redx.cli.common import AsJson, Folder, print_json, say, show_perplexity, show_rules
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.runs.checkpoint import EvaluatedCheckpoint


def evaluate(
    folder: Folder,
    rule: Annotated[
        list[str] | None, typer.Option(help="rule, or rule/bank; repeatable", show_default="all", callback=early.rules)
    ] = None,
    noise: Annotated[
        list[str] | None, typer.Option(help="kind of noise; repeatable", show_default="all", callback=early.noises)
    ] = None,
    level: Annotated[
        list[float] | None, typer.Option(help="noise level in [0, 1]; repeatable", callback=early.shares)
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="share ε to certify, in [0, 1]; repeatable", callback=early.shares)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="also write the results to this JSONL file")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="where a checkpoint's frozen blocks are", show_default="as in the run")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run again, with other rules, noise or ε; nothing is trained and the run is not changed.

    RUN may be a checkpoint file, full or slim: the model is restored and run on its test split.

    Example: `redx evaluate runs/toy --rule red --noise swap --level 0.3 --epsilon 0.2`
    """
    from redx.composition.evaluation import evaluate as measure
    from redx.composition.listing import rules_of_run, with_shares
    from redx.composition.rules import check_rule
    from redx.composition.summary import summarise
    from redx.io import files
    from redx.runs.folder import read_config
    from redx.runs.parts import count_units, read_parts
    from redx.runs.presets import configure

    checkpoint = _open_checkpoint(folder, backbone)
    config = checkpoint.config if checkpoint else read_config(folder)
    changes = {"noise": noise, "levels": level, "epsilons": epsilon, "seeds": config.seeds}
    wanted = configure(config.task, config.preset, **changes)
    sweep = {"kinds": wanted.noise, "levels": wanted.levels, "epsilons": wanted.epsilons}
    for name in rule or ():
        check_rule(name, config.statistics.use)
    rows, examples = [], 1
    for seed in config.seeds:
        stored = checkpoint or read_parts(folder, seed)
        examples = count_units(stored.banks)
        names = rule or rules_of_run(config, stored.banks)
        rows += measure(stored.banks, task=config.task, seed=seed, domains=stored.domains, **sweep, rules=names)
    if out:
        files.write_bytes(out, "".join(json.dumps(row) + "\n" for row in rows).encode())
    summary: dict[str, Any] = {
        "task": config.task,
        "seeds": config.seeds,
        "rules": with_shares(summarise(rows, config.main, examples), config),
    }
    if config.adapters is not None:
        summary["domains"] = list(read_parts(folder, config.seeds[0]).domains)
    if checkpoint:
        summary["checkpoint"] = {"kind": checkpoint.kind, "same_answers": checkpoint.same}
    if as_json:
        print_json(summary)
    else:
        show_rules(summary, noisy=True)
        show_perplexity(summary)
    if checkpoint and checkpoint.same and not as_json:
        same = checkpoint.same
        worst = min(same, key=lambda name: same[name])
        say(f"Share of answers that equal the run's: {same[worst]:.4f} (rule {worst}, the smallest of all).")


def _open_checkpoint(file: Path, backbone: str | None) -> EvaluatedCheckpoint | None:
    """Return an evaluated checkpoint, or None for the folder of a run."""
    if not os.path.isfile(file):
        if backbone:
            raise RedxError(f"--backbone goes with a checkpoint file, and {file} is none; leave it out.")
        return None
    from redx.runs import checkpoint

    return checkpoint.evaluate_checkpoint(file, backbone)
