"""`redx run adapters`: adapters trained or given, composed, compared with peft's merges, and certified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import AsJson, print_json, say, show_table


def run_adapters(
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="adapter of a domain, as peft saves it; repeatable")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="table with the columns text and domain", show_default="five domains")
    ] = None,
    domain: Annotated[list[str] | None, typer.Option(help="use only this domain; repeatable")] = None,
    train: Annotated[bool, typer.Option("--train", help="train the adapters that are not given")] = False,
    preset: Annotated[str, typer.Option(help="default, quick (few steps and documents) or tiny")] = "default",
    backbone: Annotated[
        str | None, typer.Option(help="language model: an embedded one, a folder or a hub name")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="training steps of an adapter")] = None,
    rank: Annotated[int | None, typer.Option(help="rank of the adapters")] = None,
    documents: Annotated[int | None, typer.Option(help="documents of a domain to calibrate and to test on")] = None,
    risk: Annotated[float | None, typer.Option(help="largest harm of any router")] = None,
    seed: Annotated[int, typer.Option(help="decides splits, initial weights and the order of training")] = 0,
    out: Annotated[Path, typer.Option(help="run folder")] = Path("runs/adapters"),
    as_json: AsJson = False,
) -> None:
    """Compose LoRA adapters of one language model: perplexity and accuracy by domain, merges, certificates, risk.

    An interrupted run continues with the same command and ends with the same numbers.

    Example: `redx run adapters --train --out runs/adapters`
    """
    from pydantic import ValidationError

    from redx.adapters import run
    from redx.adapters.report import describe_gains, verdict
    from redx.adapters.settings import AdaptersConfig, get_preset
    from redx.adapters.summary import table
    from redx.cli.common import read_folders
    from redx.errors import RedxError

    folders = read_folders(adapter or [])
    if not folders and not train:
        raise RedxError("There are no adapters; give --adapter NAME=FOLDER for every domain, or --train.")
    settings = get_preset(preset).model_dump()
    changes = {"backbone": backbone, "risk": risk, "documents": documents, "data": str(data) if data else None}
    changes["calibration_documents"] = documents
    settings |= {name: value for name, value in changes.items() if value is not None}
    settings |= {"seed": seed, "train": train, "domains": tuple(domain or ())}
    settings["training"] |= {name: value for name, value in {"steps": steps, "rank": rank}.items() if value is not None}
    try:
        config = AdaptersConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise RedxError(f"The setting {name} cannot be {first['input']!r}: {first['msg']}; change it.") from error
    finished = run.run_adapters(config, out, folders)
    if as_json:
        return print_json(finished.summary)
    for figure in ("perplexity", "accuracy"):
        shown = table(finished.summary, figure)
        show_table(list(shown.columns), [list(map(str, row)) for row in shown.rows])
    say(describe_gains(finished.summary))
    say(verdict(finished.summary))
    say(f"report: {finished.report}")
