"""The verbs that measure finished runs: evaluate, certify."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, print_json, say, show_rules, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.runs.checkpoint import EvaluatedCheckpoint


def evaluate(
    folder: Folder,
    rule: Annotated[list[str] | None, typer.Option(help="rule, or rule/bank; repeatable", show_default="all")] = None,
    noise: Annotated[list[str] | None, typer.Option(help="kind of noise; repeatable", show_default="all")] = None,
    level: Annotated[list[float] | None, typer.Option(help="noise level in [0, 1]; repeatable")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="share ε to certify, in [0, 1]; repeatable")] = None,
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
    from redx.composition.evaluation import summarise
    from redx.io import files
    from redx.runs.folder import read_config
    from redx.runs.parts import read_parts
    from redx.runs.presets import configure

    checkpoint = _open_checkpoint(folder, backbone)
    config = checkpoint.config if checkpoint else read_config(folder)
    changes = {"noise": noise, "levels": level, "epsilons": epsilon, "seeds": config.seeds}
    wanted = configure(config.task, config.preset, **changes)
    sweep = {"kinds": wanted.noise, "levels": wanted.levels, "epsilons": wanted.epsilons}
    sweep |= {"rules": rule} if rule else {}
    rows, examples = [], 1
    for seed in config.seeds:
        stored = checkpoint or read_parts(folder, seed)
        examples = len(next(iter(stored.banks.values())))
        rows += measure(stored.banks, task=config.task, seed=seed, domains=stored.domains, **sweep)
    if out:
        files.write_bytes(out, "".join(json.dumps(row) + "\n" for row in rows).encode())
    summary: dict[str, Any] = {
        "task": config.task,
        "seeds": config.seeds,
        "rules": summarise(rows, config.main, examples),
    }
    if checkpoint:
        summary["checkpoint"] = {"kind": checkpoint.kind, "same_answers": checkpoint.same}
    print_json(summary) if as_json else show_rules(summary, noisy=True)
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


def certify(
    folder: Folder,
    rule: Annotated[str, typer.Option(help="rule, or rule/bank")] = "red",
    epsilon: Annotated[list[float] | None, typer.Option(help="share ε of the routing weight; repeatable")] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Compute exact certified accuracy: the share of examples that no router within ε can get wrong.

    Example: `redx certify runs/toy --rule red --epsilon 0.1 --epsilon 1`
    """
    from redx.composition import certificate
    from redx.composition.evaluation import certify, match_banks
    from redx.composition.rules import RuleId
    from redx.runs.folder import choose_seed
    from redx.runs.parts import read_parts

    config, seed = choose_seed(folder, seed)
    banks = read_parts(folder, seed).banks
    results = []
    for matched, bank, parts in match_banks(banks, [rule]):
        certified = certify(matched, parts)
        correct = certified.predicted == parts.labels
        shares = {
            f"{share:g}": certificate.certified_accuracy(certified.radius, correct, share)
            for share in epsilon or config.epsilons
        }
        quantiles = {f"{q:g}": float(certified.radius.double().quantile(q)) for q in (0.01, 0.1, 0.5)}
        breakable = float((certified.radius < 1).double().mean())
        name = str(RuleId(matched.name, bank))
        results.append({"rule": name, "seed": seed, "certified": shares, "radius": quantiles, "breakable": breakable})
    if as_json:
        return print_json(results if len(results) != 1 else results[0])
    names = list(results[0]["certified"])
    rows = [
        [row["rule"], *(f"{row['certified'][name]:.4f}" for name in names), f"{row['breakable']:.4f}"]
        for row in results
    ]
    show_table(
        ["rule", *(f"ε = {name}" for name in names), "breakable"], rows, f"Certified accuracy, {folder}, seed {seed}"
    )
    say("ε: share of routing weight that an adversary may move. Breakable: examples that change under some router.")
