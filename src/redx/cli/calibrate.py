"""The verb `calibrate`: another risk for a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from redx.cli import early
from redx.cli.common import AsJson, Folder, about, print_json, say, show_table
from redx.errors import RedxError

DOMAIN_FIGURES = ("base", "clean", "worst", "harm", "routing_harm")
TEST_FIGURES = {
    "base": ("base", "accuracy on the test split"),
    "clean": ("red", "accuracy on the test split"),
    "worst": ("red, any router", "accuracy on the test split"),
}


def calibrate(
    folder: Folder,
    risk: Annotated[float | None, typer.Option(help=about("risk"), show_default="0.01", callback=early.shares)] = None,
    confidence: Annotated[
        float | None, typer.Option(help=about("confidence"), show_default="on average", callback=early.shares)
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="keep the risk over all examples (all) or in each domain (domain)", show_default="as it is"),
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(
            help="by domain: domains with too few examples share a cut-off (merge) or have none (silent)",
            show_default="as it is",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="what the risk bounds: all harm, or the harm that routers do (routing)", show_default="as it is"
        ),
    ] = None,
    admit: Annotated[
        list[str] | None, typer.Option(help="expert that takes part although it is in quarantine; repeatable")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="examples of a domain's owner, which stay there; goes with --export", callback=early.table),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="write the thresholds of --data to this JSON file, for --from; change nothing")
    ] = None,
    sent: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="calibrate by thresholds that the owner of a domain exported; repeatable",
            callback=early.present,
        ),
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="calibrate on the run's own calibration examples again")] = False,
    text: Annotated[str | None, typer.Option(help="column of --data with the text", show_default="as usual")] = None,
    label: Annotated[str | None, typer.Option(help="column of --data with the label", show_default="as usual")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="all")] = None,
    as_json: AsJson = False,
) -> None:
    """Choose how much harm the worst router may do in a finished run; nothing is trained.

    Harm is the share of examples that the base answers correctly and RED, with some router, does not. The cut-off of
    the experts is set on examples that nothing was trained or chosen on.

    Where examples must not leave their owners, each owner measures the model (--data, --export) and sends one
    threshold an example, and the integrator calibrates by them (--from). RUN may be a saved model for --export.

    Example: `redx calibrate runs/intents --risk 0.005 --confidence 0.95`
    """
    from redx.runs.calibration import calibrate_run
    from redx.runs.editing import admit_experts
    from redx.runs.owners import calibrate_from, calibrate_own, export_thresholds

    promise = {"risk": risk, "confidence": confidence, "by": by, "small": small, "budget": budget, "admit": admit}
    given = [name for name, value in promise.items() if value not in (None, [])]
    if data is not None or export is not None or text or label:
        if data is None or export is None:
            raise RedxError("--data names the owner's examples and --export the file that is sent; give both.")
        if given or sent or own:
            other = given[0] if given else "from" if sent else "own"
            raise RedxError(f"--export writes thresholds, which serve any risk; leave out --{other}.")
        return _show_export(export_thresholds(folder, data, export, text, label, seed), as_json)
    if sent:
        if own or admit or by not in (None, "domain") or small not in (None, "silent"):
            raise RedxError(
                "With --from each domain keeps the risk by its own owner's thresholds, and is silent where they are "
                "too few; leave out --by, --small, --admit and --own."
            )
        results = calibrate_from(folder, sent, risk, confidence, budget, seed)
        return _show_results(folder, results, confidence, as_json)
    if own:
        if admit:
            raise RedxError("--own calibrates the experts as they stand; give --admit in a command of its own.")
        calibrate_own(folder, seed)
    if admit:
        admit_experts(folder, admit, seed)
    _show_results(folder, calibrate_run(folder, risk, confidence, seed, by, small, budget), confidence, as_json)


def _show_export(written: dict[str, Any], as_json: bool) -> None:
    """Print what an owner sends, and what it says of the examples."""
    if as_json:
        return print_json(written)
    show_table(["domain", "examples"], [[name, str(count)] for name, count in written["domains"].items()])
    say(
        f"{written['file']} holds a threshold for each example in ascending order, and no example, text or label.",
        "Send it to the integrator: `redx calibrate RUN --from FILE` takes one file of every owner.",
    )


def _show_results(folder: Path, results: dict[int, dict[str, Any]], confidence: float | None, as_json: bool) -> None:
    """Print what a run promises now, by seed."""
    if as_json:
        return print_json(results)
    for number, figures in results.items():
        show_risk(figures, f"{folder}, seed {number}, as it stands now, on the test split")
    kept = "on average over calibration sets" if confidence is None else f"with probability {confidence:g}"
    most = max(figures["risk"] for figures in results.values())
    where = " in any domain" if any(figures["by"] == "domain" for figures in results.values()) else ""
    shared = [one for figures in results.values() for one in figures.get("domains", {}).values() if one["together"]]
    if shared:
        where = " in any domain, or in those that share a cut-off (+) together"
    if all(figures["budget"] == "routing" for figures in results.values()):
        say(f"Where the expert of the domain is right, no router costs more than {most:g}{where}, {kept}.")
    else:
        say(f"No router costs more than {most:g} of the base's accuracy{where}, {kept}.")
    say(f"`redx evaluate {folder}` shows all rules at this risk.")


def show_risk(figures: dict[str, Any] | None, title: str) -> None:
    """Print the promise of a run and the figures of `red` on its test split; nothing where there is no risk control."""
    if not figures:
        return
    kept = f"with probability {figures['confidence']:g}" if figures["confidence"] else "on average"
    interval = f"{figures['low']:.4f}-{figures['high']:.4f}"
    rows = [
        ["risk", f"{figures['risk']:g}", kept],
        ["cut-off", "—" if figures["cutoff"] is None else f"{figures['cutoff']:.3f}", "of the experts' confidence"],
        [
            "calibrated on",
            str(figures["calibration"]),
            "examples, by their owners" if figures["owners"] else "examples",
        ],
        *([name, f"{figures[key]:.4f}", words] for key, (name, words) in TEST_FIGURES.items()),
        ["harm", f"{figures['harm']:.4f}", f"95 %: {interval}"],
    ]
    if "routing_harm" in figures:
        interval = f"{figures['routing_low']:.4f}-{figures['routing_high']:.4f}"
        rows.append(["  of it by routers", f"{figures['routing_harm']:.4f}", f"95 %: {interval}"])
    rows[0][2] += ", of the harm by routers" if figures["budget"] == "routing" else ", of all harm"
    show_table(["", "value", ""], rows, title)
    show_quarantine(figures["quarantine"])
    if not (domains := figures.get("domains")):
        return
    named = any("true" in one for one in domains.values())
    show_table(
        ["domain", "calibrated on", "base", "red", "any router", "harm", "by routers"],
        _domain_rows(domains),
        "By domain that the base names" if named else "By domain",
    )
    if named:
        rows = [[name, *_interval(one["true"])] for name, one in domains.items() if "true" in one]
        show_table(["true domain", "examples", "harm", "95 %"], rows, "By true domain")
        say(
            "The domains share classes, so the risk is kept among examples for which the base names the domain; among "
            "those that belong to it, the harm is measured and not bounded."
        )
    show_owners(figures)


def show_owners(figures: dict[str, Any]) -> None:
    """Name the domains whose experts are silent, where owners calibrate: without a file, or with too few examples."""
    if not figures["owners"]:
        return
    domains, risk = figures["domains"], figures["risk"]
    lacking = [name for name in domains if name not in figures["owners"]]
    if lacking:
        say(f"No owner sent thresholds of {', '.join(lacking)}: the experts are silent there.")
    if few := [name for name in figures["owners"] if domains[name]["cutoff"] is None and name not in lacking]:
        say(
            f"The examples of {', '.join(few)} are too few for the risk {risk:g}, or all show harm: the experts are "
            "silent there."
        )


def say_owners(owners: list[str]) -> None:
    """Name the domains whose owners calibrated a run; nothing where none did."""
    if owners:
        say(f"Calibrated by the owners of {', '.join(owners)}, on examples that only they have.")


def show_quarantine(trials: dict[str, dict[str, Any]]) -> None:
    """Name the experts in quarantine, and those that the user admits, with what they do to the choice examples."""
    from redx.composition.quarantine import Trial

    for name, trial in trials.items():
        why = Trial(**{field: value for field, value in trial.items() if field != "seed"})
        if trial["quarantined"]:
            say(
                f"{name} is in quarantine, with weight zero: {why}. Its owner can mend it; "
                f"`redx calibrate RUN --admit {name}` lets it take part."
            )
        else:
            say(f"{name} is admitted by you: {why}.")


def _interval(true: dict[str, Any]) -> list[str]:
    """Return the number of examples of a true domain, their harm and its interval."""
    if true["harm"] is None:
        return ["0", "—", "—"]
    return [str(true["examples"]), f"{true['harm']:.4f}", f"{true['low']:.4f}-{true['high']:.4f}"]


def _domain_rows(domains: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return a row for each domain; a domain that shares its cut-off with others has a plus at its count."""
    rows = []
    for name, one in domains.items():
        count = f"{one['calibration']}{' +' if one['together'] else ''}{' (silent)' if one['cutoff'] is None else ''}"
        rows.append([name, count, *("—" if one[key] is None else f"{one[key]:.4f}" for key in DOMAIN_FIGURES)])
    return rows
