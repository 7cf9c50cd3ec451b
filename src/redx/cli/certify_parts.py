"""The tables of `redx certify --parts`: certified accuracy, noise, domains and the promise of a risk cut-off."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.cli.certify import show_certified
from redx.cli.common import print_json, say, show_table
from redx.errors import RedxError

if TYPE_CHECKING:
    from redx.composition.files import PartsReport

MANY = 20  # domains that a table shows


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
