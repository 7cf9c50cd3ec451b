"""The verbs that make runs and reports: run, report, list."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from redx.cli import early
from redx.cli.common import (
    Address,
    AsJson,
    EngineName,
    about,
    print_json,
    say,
    show_brief,
    show_main_rules,
    show_rules,
    show_table,
)

if TYPE_CHECKING:
    from redx.tasks import Task

OPTIONS_PANEL = "Options of this task"


class RunGroup(TyperGroup):
    """`redx run TASK`: one command per task, built from the task's settings when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from redx.tasks import TASKS

        return list(TASKS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from redx.tasks import get_task

        if ctx.resilient_parsing and cmd_name not in self.list_commands(ctx):  # while the shell completes words
            return None
        task = get_task(cmd_name)
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name=task.name, help=_task_help(task))(_run_command(task))
        return typer.main.get_command(app)


def _task_help(task: Task) -> str:
    settings = "`--set NAME=VALUE` changes any other setting by its dotted name, as in config.json."
    return (
        f"{task.about}\n\nAn interrupted run continues with the same command and ends with the same numbers. {settings}"
        f"\n\nExample: `{task.example}`"
    )


def _run_command(task: Task) -> Any:
    """Return the function behind `redx run TASK`, with one parameter per option that the task reads."""
    from redx.runs.options import OPTIONS

    chosen = [option for option in OPTIONS.values() if option.keyword in task.options]

    def command(
        preset: str,
        seed: list[int] | None,
        out: Path | None,
        banks: str,
        assignments: list[str] | None,
        all_banks: bool,
        brief: bool,
        track: str | None,
        as_json: bool,
        engine: str,
        address: str | None,
        **values: Any,
    ) -> None:
        from redx.runs.presets import settle

        changes = {name: _plain(value) for name, value in values.items() if value is not None}
        settle(task.name, preset, assignments or (), seeds=seed, run=banks, **changes)
        if "file" in changes or "questions_file" in changes:
            early.check_data(changes.get("file", changes.get("questions_file")))
        from redx.report.headline import findings
        from redx.runs import pipeline

        places = {"engine": engine, "address": address} if (engine, address) != ("local", None) else {}
        finished = pipeline.run(
            task.name,
            preset,
            seeds=seed,
            out=out,
            run=banks,
            assignments=assignments or (),
            track=track,
            **places,
            **changes,
        )
        if as_json:
            return print_json(finished.summary)
        show = show_rules if all_banks else show_brief if brief else show_main_rules
        show(finished.summary)
        asked = seed or list(task.presets[preset].seeds)
        if set(finished.summary["seeds"]) - set(asked):
            covered, wanted = (", ".join(map(str, seeds)) for seeds in (finished.summary["seeds"], asked))
            verb = "was" if len(asked) == 1 else "were"
            say(f"The summary covers the seeds {covered} of the folder; only {wanted} {verb} asked for.")
        say("", *findings(finished.summary), f"report: {finished.report}")

    presets = f"{about('preset')}: {', '.join(task.presets)}"
    common = [
        _parameter("preset", Annotated[str, typer.Option(help=presets)], "default"),
        _parameter("seed", Annotated[list[int] | None, typer.Option(help=about("seeds"), show_default="0")]),
        _parameter("out", Annotated[Path | None, typer.Option(help="run folder", show_default=f"runs/{task.name}")]),
        _parameter("banks", Annotated[str, typer.Option("--run", help="banks to train: red, moe or all")], "all"),
        _parameter(
            "assignments",
            Annotated[
                list[str] | None,
                typer.Option("--set", metavar="NAME=VALUE", help="any setting by its dotted name; repeatable"),
            ],
        ),
        _parameter("all_banks", Annotated[bool, typer.Option("--all", help="print every rule with every bank")], False),
        _parameter("brief", Annotated[bool, typer.Option("--brief", help="print few figures")], False),
        _parameter(
            "track",
            Annotated[
                str | None, typer.Option(metavar="tensorboard", help="write training curves into the folder track")
            ],
        ),
        _parameter("as_json", AsJson, False),
        _parameter("engine", EngineName, "local"),
        _parameter("address", Address),
    ]
    parameters = [*common, *(_option_parameter(task, option.keyword) for option in chosen)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _option_parameter(task: Task, keyword: str) -> inspect.Parameter:
    """Return the parameter of one option; type, help and default come from the setting behind it."""
    from redx.runs.options import OPTIONS, choices, find_field, get_setting, value_type

    option = OPTIONS[keyword]
    field = find_field(option.path)
    kind, repeated = value_type(field)
    default = get_setting(task.presets["default"].model_dump(), option.path)
    shown = None if default is None else " ".join(map(str, default)) if repeated else str(default)
    is_file = keyword in ("file", "questions_file", "data_dir")
    annotation = Path if is_file else list[kind] if repeated else kind
    details: dict[str, Any] = {"help": field.description, "rich_help_panel": OPTIONS_PANEL}
    details |= {"show_default": shown} if shown else {}
    if words := choices(field):
        details["metavar"] = "|".join(words)
    return _parameter(keyword, Annotated[annotation | None, typer.Option(option.flag, **details)])


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of finished runs", metavar="RUN…", show_default=False, callback=early.run_folders),
    ],
    out: Annotated[Path | None, typer.Option(help="page for several runs", show_default="report.html")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run again, or one page that compares several.

    Example: `redx report runs/toy-linear runs/toy-mlp --out compare.html`
    """
    from redx.runs.reports import write_reports

    page = write_reports(runs, out or Path("report.html"))
    print_json({"report": str(page)}) if as_json else say(f"report: {page}")


def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks with their presets, how long each takes, and what it downloads.

    Example: `redx list`
    """
    from redx.tasks import TASKS

    if as_json:
        described = {
            name: {
                "about": task.about,
                "presets": list(task.presets),
                "takes": dict(task.takes),
                "downloads": task.downloads,
            }
            for name, task in TASKS.items()
        }
        return print_json(described)
    rows = []
    for name, task in TASKS.items():
        presets = (f"{preset} ({time})" if (time := task.takes.get(preset)) else preset for preset in task.presets)
        rows += [[name, task.about, task.downloads or "nothing"], ["", f"Presets: {', '.join(presets)}.", ""]]
    show_table(["task", "description, and time of a seed", "downloads"], rows)
    say("Times are of two cores without a GPU, after the first run has downloaded what it needs.")
    say("`redx run TASK --help` shows the options of a task.")
