"""The verb `certify`: exact certificates for a finished run, or for the outputs of any model."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli import early
from redx.cli.common import AsJson, about, print_json, say, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor

    from redx.composition.files import PartsReport

MANY = 20  # domains that a table shows


def certify(
    folder: Annotated[
        Path | None,
        typer.Argument(help="folder of a finished run", metavar="RUN", show_default=False, callback=early.run_folder),
    ] = None,
    rule: Annotated[str, typer.Option(help="rule, or rule/bank of a run", callback=early.rules)] = "red",
    epsilon: Annotated[
        list[float] | None, typer.Option(help="share ε of the routing weight; repeatable", callback=early.shares)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="seed of the run; with --parts, of noise and division", show_default="all; 0")
    ] = None,
    parts: Annotated[
        Path | None,
        typer.Option(help="outputs of any model (.npz or .safetensors) instead of a run", callback=early.present),
    ] = None,
    noise: Annotated[
        list[str] | None,
        typer.Option(help="with --parts: kind of noise; repeatable", show_default="all", callback=early.noises),
    ] = None,
    level: Annotated[
        list[float] | None, typer.Option(help="with --parts: noise level; repeatable", callback=early.shares)
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(help="with --parts: largest harm of the worst router, such as 0.01", show_default="no cut-off"),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help=f"with --risk: {about('confidence')}", show_default="on average")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="with --risk: outputs of the same model on held-out examples", callback=early.present),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="with --risk: share of the rows that is set aside for calibration", show_default="0.5"),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="with --risk: gain or answer, if the file has no confidences", show_default="gain"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="with --parts: also write rows, predictions and radii to this .npz file")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute exact certified accuracy: the share of examples that no router within ε can get wrong.

    RUN is the folder of a finished run. --parts takes the outputs of any model instead: the arrays base (N, C),
    residuals (N, K, C), gates (N, K), labels (N,), domains (N,) and, if you have them, confidences (N, K).

    Example: `redx certify runs/toy --rule red --epsilon 0.1 --epsilon 1`

    Example: `redx certify --parts outputs.npz --rule red --risk 0.01`
    """
    only_parts = {"noise": noise, "level": level, "risk": risk, "confidence": confidence, "calibration": calibration}
    only_parts |= {"share": share, "score": score, "out": out}
    given = [name for name, value in only_parts.items() if value is not None and value != []]
    if (folder is None) == (parts is None):
        raise RedxError("Give the folder of a finished run, or --parts FILE with the outputs of any model, not both.")
    if folder is not None:
        if given:
            raise RedxError(f"--{given[0]} goes with --parts; `redx evaluate` and `redx calibrate` do this for a run.")
        return _certify_run(folder, rule, epsilon, seed, as_json)
    if risk is None and (idle := [name for name in given if name in ("confidence", "calibration", "share", "score")]):
        raise RedxError(f"--{idle[0]} needs a risk; give one, such as --risk 0.01.")
    if calibration is not None and share is not None:
        raise RedxError(
            "--share sets rows of FILE aside, and --calibration makes that needless; leave one of them out."
        )

    assert parts is not None
    settings: dict[str, Any] = {"epsilons": epsilon, "kinds": noise, "levels": level, "risk": risk, "share": share}
    settings |= {"confidence": confidence, "calibration": calibration, "seed": seed, "score": score}
    show_parts(parts, rule, {name: value for name, value in settings.items() if value not in (None, [])}, out, as_json)


def _certify_run(folder: Path, rule: str, epsilon: list[float] | None, seed: int | None, as_json: bool) -> None:
    import torch

    from redx.composition import certificate
    from redx.composition.evaluation import certify, match_banks
    from redx.composition.rules import RuleId, check_rule
    from redx.runs.folder import choose_seed, read_config
    from redx.runs.parts import read_parts

    config = read_config(folder) if seed is None else choose_seed(folder, seed)[0]
    seeds = list(config.seeds) if seed is None else [seed]
    check_rule(rule, config.statistics.use)
    certified: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for number in seeds:
        for matched, bank, parts in match_banks(read_parts(folder, number).banks, [rule]):
            answers = certify(matched, parts)
            one = answers.radius, answers.predicted == parts.true_labels()
            certified.setdefault(str(RuleId(matched.name, bank)), []).append(one)
    results = []
    for name, by_seed in certified.items():
        shares = {
            f"{share:g}": fmean(certificate.certified_accuracy(radius, right, share) for radius, right in by_seed)
            for share in epsilon or config.epsilons
        }
        radius = torch.cat([radius for radius, _ in by_seed]).double()
        quantiles = {f"{q:g}": float(radius.quantile(q)) for q in (0.01, 0.1, 0.5)}
        breakable = float((radius < 1).double().mean())
        results.append({"rule": name, "seeds": seeds, "certified": shares, "radius": quantiles, "breakable": breakable})
    if not results:
        raise RedxError(f"{folder} has no bank that the rule {rule!r} reads; choose another with --rule.")
    if as_json:
        return print_json(results if len(results) != 1 else results[0])
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of the seeds {', '.join(map(str, seeds))}"
    show_certified(results, f"Certified accuracy, {folder}, {shown}")


def show_certified(results: list[dict[str, Any]], title: str) -> None:
    """Print the certified accuracy of every rule by ε, and the share of predictions that some router can change."""
    names = list(results[0]["certified"])
    rows = [
        [row["rule"], *(f"{row['certified'][name]:.4f}" for name in names), f"{row['breakable']:.4f}"]
        for row in results
    ]
    show_table(["rule", *(f"ε = {name}" for name in names), "breakable"], rows, title)
    say("ε: share of routing weight that an adversary may move. Breakable: examples that change under some router.")


# --- parts files


def show_parts(file: Path, rule: str, settings: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Certify the outputs in a parts file and print the results; `settings` are those of `certify_parts`."""
    from redx.composition.files import certify_parts

    if out is not None and out.suffix != ".npz":
        raise RedxError(f"The radii are written as .npz, which {out} is not; choose a name that ends in .npz.")
    report = certify_parts(file, rule, **settings)
    if out is not None:
        _write_radii(out, report)
    if as_json:
        return print_json(report.to_dict())
    figures = report.figures
    size = f"{figures['examples']} examples, {figures['experts']} experts, {figures['outputs']} outputs"
    show_certified([figures], f"Certified accuracy, {file}: {size}")
    accuracy, base = figures["accuracy"], figures["base"]
    of_base = "" if base is None else f" The base alone: {base:.4f}."
    say(f"Accuracy {accuracy['mean']:.4f} (95 %: {accuracy['low']:.4f}-{accuracy['high']:.4f}).{of_base}")
    _show_noise(figures["noise"])
    domains = figures["per_domain"]
    if 1 < len(domains) <= MANY:
        show_table(["domain", "accuracy"], [[name, f"{value:.4f}"] for name, value in domains.items()])
    if figures["risk"]:
        _show_promise(figures["risk"], figures["examples"])


def _show_noise(curves: dict[str, dict[str, float]]) -> None:
    levels = list(next(iter(curves.values()), {}))
    rows = [[kind, *(f"{curve[level]:.4f}" for level in levels)] for kind, curve in curves.items()]
    if rows:
        show_table(["noise", *(f"level {level}" for level in levels)], rows, "Accuracy under routing noise")


def _show_promise(promise: dict[str, Any], examples: int) -> None:
    accuracies = ("base", "clean", "worst", "harm")
    rows = [
        [words, *(f"{figures[key]:.4f}" for key in accuracies), f"{figures['low']:.4f}-{figures['high']:.4f}"]
        for words, figures in (("without a cut-off", promise["before"]), ("with the cut-off", promise["after"]))
    ]
    columns = ["", "base", "clean", "any router", "harm", "95 % of the harm"]
    show_table(columns, rows, f"Risk {promise['risk']:g} on {examples} test examples")
    cutoff = promise["cutoff"]
    shown = cutoff if isinstance(cutoff, str) else f"{cutoff:.6g}"
    drawn = promise["divided"]
    source = f"drawn with seed {drawn['seed']}" if drawn else "of the calibration file"
    say(f"Cut-off {shown} on the confidence ({promise['score']}), from {promise['calibration']} examples {source}.")
    kept = "on average over calibration sets"
    if promise["confidence"] is not None:
        kept = f"with probability {promise['confidence']:g}"
    say(f"No router harms more than {promise['risk']:g} of the examples, {kept}.")


def _write_radii(out: Path, report: PartsReport) -> None:
    import numpy

    from redx.io import files

    content = io.BytesIO()
    numpy.savez(content, rows=report.rows.numpy(), predicted=report.predicted.numpy(), radius=report.radius.numpy())
    files.write_bytes(out, content.getvalue())
