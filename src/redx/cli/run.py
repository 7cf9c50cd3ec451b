"""The verbs that make runs and reports: run, report, list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redx.cli.common import AsJson, about, print_json, show_rules, show_table
from redx.config import (
    BaseConfig,
    OwnershipConfig,
    QuestionsConfig,
    ReadingConfig,
    RouterConfig,
    TableConfig,
    TrainingConfig,
    TrunkConfig,
)

DATA = about("file", QuestionsConfig).partition(",")[0] + ", or your own examples"


def run(
    task: Annotated[str, typer.Argument(help=about("task"), metavar="TASK", show_default=False)],
    preset: Annotated[str, typer.Option(help=about("preset"))] = "default",
    seed: Annotated[list[int] | None, typer.Option(help=about("seeds"), show_default="0")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder", show_default="runs/TASK")] = None,
    only: Annotated[str, typer.Option("--run", help="banks to train: red, moe or all")] = "all",
    backbone: Annotated[str | None, typer.Option(help=about("backbone"))] = None,
    device: Annotated[str | None, typer.Option(help=about("device"))] = None,
    data_dir: Annotated[Path | None, typer.Option(help=about("data_dir"))] = None,
    data: Annotated[Path | None, typer.Option(help=f"{DATA}: {about('file', TableConfig)}")] = None,
    text: Annotated[str | None, typer.Option(help=about("text", TableConfig), show_default="text")] = None,
    label: Annotated[str | None, typer.Option(help=about("label", TableConfig), show_default="label")] = None,
    domain: Annotated[str | None, typer.Option(help=about("domain", TableConfig))] = None,
    split_column: Annotated[str | None, typer.Option(help=about("split", TableConfig))] = None,
    clusters: Annotated[int | None, typer.Option(help=about("clusters", TableConfig))] = None,
    total: Annotated[int | None, typer.Option(help=about("total", QuestionsConfig))] = None,
    split: Annotated[str | None, typer.Option(help="disjoint or random: " + about("split", QuestionsConfig))] = None,
    operators: Annotated[int | None, typer.Option(help=about("operators", QuestionsConfig))] = None,
    operation: Annotated[list[str] | None, typer.Option(help=about("operations", QuestionsConfig))] = None,
    experts: Annotated[str | None, typer.Option(help=about("experts", QuestionsConfig))] = None,
    decomposer: Annotated[str | None, typer.Option(help=about("decomposer"))] = None,
    block: Annotated[list[int] | None, typer.Option(help=about("blocks", ReadingConfig))] = None,
    pooling: Annotated[str | None, typer.Option(help=about("pooling", ReadingConfig))] = None,
    precision: Annotated[str | None, typer.Option(help=about("precision", ReadingConfig))] = None,
    tokens: Annotated[int | None, typer.Option(help=about("tokens", ReadingConfig))] = None,
    share: Annotated[float | None, typer.Option(help=about("share", BaseConfig))] = None,
    trunk: Annotated[str | None, typer.Option(help=about("shape", TrunkConfig))] = None,
    depth: Annotated[int | None, typer.Option(help=about("depth", TrunkConfig))] = None,
    train_blocks: Annotated[int | None, typer.Option(help=about("blocks", TrunkConfig))] = None,
    limit: Annotated[int | None, typer.Option(help=about("limit"))] = None,
    alpha: Annotated[float | None, typer.Option(help=about("alpha", OwnershipConfig))] = None,
    router: Annotated[str | None, typer.Option(help=about("shape", RouterConfig))] = None,
    batch_size: Annotated[int | None, typer.Option(help=about("batch", TrainingConfig))] = None,
    virtual_batch_size: Annotated[int | None, typer.Option(help=about("virtual_batch", TrainingConfig))] = None,
    max_epochs_base: Annotated[int | None, typer.Option(help=about("epochs", TrainingConfig))] = None,
    max_epochs_experts: Annotated[int | None, typer.Option(help=about("epochs", TrainingConfig))] = None,
    max_epochs_router: Annotated[int | None, typer.Option(help=about("epochs", TrainingConfig))] = None,
    patience: Annotated[int | None, typer.Option(help=about("patience", TrainingConfig))] = None,
    integrate: Annotated[bool | None, typer.Option("--integrate", help=about("integrate"))] = None,
    study: Annotated[str | None, typer.Option(help=about("study") + ": none, quick or full")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a task from data to report.

    An interrupted run goes on with the same command and ends with the same numbers.

    Example: `redx run toy --seed 0 --seed 1 --seed 2`
    """
    from redx.runs import pipeline

    epochs = {"base": max_epochs_base, "experts": max_epochs_experts, "router": max_epochs_router}
    done = pipeline.run(
        task,
        preset,
        seeds=seed,
        out=out,
        run=only,
        backbone=backbone,
        device=device,
        data_dir=None if data_dir is None else str(data_dir),
        file=None if data is None else str(data),
        text=text,
        label=label,
        domain=domain,
        split_column=split_column,
        clusters=clusters,
        total=total,
        split=split,
        operators=operators,
        operations=operation,
        experts=experts,
        decomposer=decomposer,
        blocks=block,
        pooling=pooling,
        precision=precision,
        tokens=tokens,
        share=share,
        trunk=trunk,
        depth=depth,
        train_blocks=train_blocks,
        limit=limit,
        alpha=alpha,
        routing=router,
        batch=batch_size,
        virtual_batch=virtual_batch_size,
        epochs={stage: count for stage, count in epochs.items() if count is not None},
        patience=patience,
        integrate=integrate,
        study=study,
    )
    if as_json:
        return print_json(done.summary)
    show_rules(done.summary)
    typer.echo(f"\nreport: {done.report}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs", metavar="RUN…", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="page for several runs", show_default="report.html")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run again, or one page that compares several.

    Example: `redx report runs/toy-linear runs/toy-mlp --out compare.html`
    """
    from redx.runs.reports import write_reports

    made = write_reports(runs, out or Path("report.html"))
    print_json({"report": str(made)}) if as_json else typer.echo(f"report: {made}")


def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks with their presets.

    Example: `redx list`
    """
    from redx.tasks import tasks

    found = {name: {"about": task.about, "presets": list(task.presets)} for name, task in tasks().items()}
    if as_json:
        return print_json(found)
    rows = [[name, facts["about"], ", ".join(facts["presets"])] for name, facts in found.items()]
    show_table(["task", "what it asks", "presets"], rows)
