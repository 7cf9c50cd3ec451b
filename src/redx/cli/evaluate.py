"""The verbs that measure finished runs: evaluate, certify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli.common import AsJson, Folder, OneSeed, print_json, show_rules, show_table
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
    """Evaluate a finished run again, with other rules, noise or ε; nothing is trained and the run stays as it is.

    RUN may be a checkpoint file, full or slim: it is put together again, and its test split is asked anew.

    Example: `redx evaluate runs/toy --rule red --noise swap --level 0.3 --epsilon 0.2`
    """
    from redx.composition.evaluation import evaluate as measure
    from redx.composition.evaluation import summarise
    from redx.io import files
    from redx.models.persistence import read_domain_names
    from redx.runs.folder import read_config, read_parts
    from redx.runs.presets import configure

    found = _open_checkpoint(folder, backbone)
    config = found.config if found else read_config(folder)
    changes = {"noise": noise, "levels": level, "epsilons": epsilon, "seeds": config.seeds}
    wanted = configure(config.task, config.preset, **changes)
    sweep = {"kinds": wanted.noise, "levels": wanted.levels, "epsilons": wanted.epsilons}
    sweep |= {"rules": rule} if rule else {}
    rows, examples = [], 1
    for seed in config.seeds:
        banks = found.banks if found else read_parts(folder, seed)
        domains = found.domains if found else read_domain_names(folder / f"seed-{seed}")
        examples = len(next(iter(banks.values())))
        rows += measure(banks, task=config.task, seed=seed, domains=domains, **sweep)
    if out:
        files.write_bytes(out, "".join(json.dumps(row) + "\n" for row in rows).encode())
    summary: dict[str, Any] = {
        "task": config.task,
        "seeds": config.seeds,
        "rules": summarise(rows, config.main, examples),
    }
    if found:
        summary["checkpoint"] = {"kind": found.kind, "same_answers": found.same}
    print_json(summary) if as_json else show_rules(summary, noisy=True)
    if found and found.same and not as_json:
        worst = min(found.same, key=lambda name: found.same[name])
        typer.echo(f"Answers that are the run's own: {found.same[worst]:.4f} (rule {worst}, the least of all).")


def _open_checkpoint(file: Path, backbone: str | None) -> EvaluatedCheckpoint | None:
    """What a checkpoint says about its test split; None for the folder of a run."""
    if not file.is_file():
        if backbone:
            raise RedxError(f"--backbone goes with a checkpoint file, and {file} is none; leave it out.")
        return None
    from redx.runs import checkpoint

    return checkpoint.evaluate_checkpoint(file, backbone)


def certify(
    folder: Folder,
    rule: Annotated[str, typer.Option(help="rule, or rule/bank")] = "red",
    epsilon: Annotated[list[float] | None, typer.Option(help="share ε of the routing mass; repeatable")] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Prove what no router can break: exact certified accuracy, and the radii of the single examples.

    Example: `redx certify runs/toy --rule red --epsilon 0.1 --epsilon 1`
    """
    from redx.composition import certificate
    from redx.composition.evaluation import certify, match_banks
    from redx.composition.rules import RuleId
    from redx.runs.folder import read_config, read_parts

    config = read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    banks = read_parts(folder, seed)
    told = []
    for found, bank, parts in match_banks(banks, [rule]):
        judged = certify(found, parts)
        right = judged.predicted == parts.labels
        shares = {
            f"{share:g}": certificate.certified_accuracy(judged.radius, right, share)
            for share in epsilon or config.epsilons
        }
        quantiles = {f"{q:g}": float(judged.radius.double().quantile(q)) for q in (0.01, 0.1, 0.5)}
        breakable = float((judged.radius < 1).double().mean())
        name = str(RuleId(found.name, bank))
        told.append({"rule": name, "seed": seed, "certified": shares, "radius": quantiles, "breakable": breakable})
    if as_json:
        return print_json(told if len(told) != 1 else told[0])
    names = list(told[0]["certified"])
    rows = [
        [each["rule"], *(f"{each['certified'][name]:.4f}" for name in names), f"{each['breakable']:.4f}"]
        for each in told
    ]
    show_table(
        ["rule", *(f"ε = {name}" for name in names), "breakable"], rows, f"Certified accuracy, {folder}, seed {seed}"
    )
    typer.echo("ε is the share of routing mass an adversary may move; 'breakable' examples change under some router.")
