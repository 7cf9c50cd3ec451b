"""The verb that gates pull requests: check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli import early
from redx.cli.common import AsJson, Folder, RuleName, print_json, say, show_table


def check(
    folder: Folder,
    against: Annotated[
        Path | None, typer.Option(help="run that it must not be significantly worse than", callback=early.run_folder)
    ] = None,
    max_risk: Annotated[float | None, typer.Option(help="largest risk that the run may be calibrated for")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="smallest lower bound of accuracy")] = None,
    min_certified: Annotated[
        float | None, typer.Option(help="smallest lower bound of the share that is right under any router")
    ] = None,
    max_harm: Annotated[
        float | None,
        typer.Option(
            help="largest upper bound of the share that the base gets right and some router gets wrong; in the worst "
            "domain where the run keeps its risk by domain"
        ),
    ] = None,
    min_domain: Annotated[
        float | None, typer.Option(help="smallest lower bound of accuracy in the worst domain")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="probability with which a bound holds", show_default="0.95")
    ] = None,
    rule: RuleName = None,
    markdown: Annotated[Path | None, typer.Option(help="also write the table to this Markdown file")] = None,
    junit: Annotated[Path | None, typer.Option(help="also write the checks to this JUnit XML file")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a run for a pull request: exact confidence bounds against floors, or against another run.

    Floors also come from the section [check] of a redx.toml in the run folder or beside it, with underscores in the
    names; options win. Exit code 0 if all checks hold, 1 if one is broken, 2 if the input is wrong.

    Example: `redx check runs/toy --min-accuracy 0.8 --max-harm 0.1`
    """
    from redx.cli.calibrate import say_owners, show_quarantine
    from redx.io.files import write_bytes
    from redx.runs.calibration import owners_of, quarantine_of
    from redx.runs.check import check_run, read_settings
    from redx.runs.check_output import COLUMNS, table_rows, title, to_junit, to_markdown

    floors = {"max_risk": max_risk, "min_accuracy": min_accuracy, "min_certified": min_certified}
    floors |= {"max_harm": max_harm, "min_domain": min_domain}
    settings = read_settings(folder, against=against, rule=rule, confidence=confidence, **floors)
    result = check_run(folder, settings.floors, settings.against, settings.rule, settings.confidence)
    if markdown:
        write_bytes(markdown, to_markdown(result).encode())
    if junit:
        write_bytes(junit, to_junit(result))
    quarantine, owners = quarantine_of(folder), owners_of(folder)
    if as_json:
        more = {"settings": str(settings.file) if settings.file else None, "quarantine": quarantine}
        more |= {"owners": owners}
        print_json(result.to_dict() | more)
    else:
        say(title(result))
        show_table(COLUMNS, table_rows(result))
        if settings.file:
            say(f"Settings that are not given as options: {settings.file}.")
        show_quarantine(quarantine)
        say_owners(owners)
        say(result.verdict)
    if not result.ok:
        raise typer.Exit(1)
