"""The command line: all verbs; an error of the user becomes one sentence and exit code 2, a refused expert code 1."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from redx import __version__
from redx.cli import (
    adapters,
    calibrate,
    certify,
    check,
    checkpoint,
    evaluate,
    experts,
    inspect,
    predict,
    recover,
    resources,
    route,
    run,
    serve,
    solve,
    sweep,
    verify,
)
from redx.cli.common import say
from redx.errors import RedxError, RefusedError
from redx.io import progress

PANELS = {  # how `redx --help` arranges the verbs
    "Train": ("run", "sweep", "report", "list", "fetch", "data"),
    "Ask": ("predict", "solve", "generate", "route", "serve", "replay"),
    "Measure and prove": ("evaluate", "certify", "calibrate", "check", "monitor", "verify"),
    "Change experts": ("experts", "router", "adapters"),
    "Files and machine": ("export", "shrink", "inspect", "sign", "recover", "cache", "doctor"),
}


class VerbGroup(TyperGroup):
    """The verbs in the order of `PANELS`, each under the heading of its panel."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs, in the order that help shows."""
        order = [name for names in PANELS.values() for name in names]
        return sorted(super().list_commands(ctx), key=order.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb, which knows the heading that it stands under."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return command


app = typer.Typer(
    name="redx",
    cls=VerbGroup,
    help="Residual Expert Decomposition: train experts apart, compose them, certify them against any router.\n\n"
    "Every verb takes --debug to show the traceback of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
running = typer.Typer(
    cls=run.RunGroup,
    help="Run a task from data to report.\n\nExample: `redx run toy --seed 0 --seed 1 --seed 2`",
    no_args_is_help=True,
)
fetching = typer.Typer(help="Fetch what runs need, ahead of time.", no_args_is_help=True)
keeping = typer.Typer(help="Experts as files: list, add, remove, replace, train, compare.", no_args_is_help=True)
routing = typer.Typer(help="The router of a run.", no_args_is_help=True)
adapting = typer.Typer(help="LoRA adapters as experts: list, add, remove, save.", no_args_is_help=True)
caching = typer.Typer(help="Show or clear the cache: data, backbones, features.", no_args_is_help=True)


def print_version(wanted: bool) -> None:
    """Print the version and end, if wanted."""
    if wanted:
        say(f"redx {__version__}")
        raise typer.Exit


@app.callback()
def choose_verb(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Take the options that stand before a verb."""


app.add_typer(running, name="run")
app.command()(sweep.sweep)
app.command()(evaluate.evaluate)
app.command()(certify.certify)
app.command()(calibrate.calibrate)
app.command()(check.check)
app.command()(run.report)
app.command()(predict.predict)
app.command(context_settings={"ignore_unknown_options": True})(solve.solve)  # a question may begin with a minus
app.command()(route.route)
app.command()(serve.serve)
app.command()(serve.replay)
app.command()(serve.monitor)
app.command()(checkpoint.export)
app.command()(checkpoint.shrink)
app.command()(inspect.inspect)
app.command()(recover.recover)
app.command()(verify.verify)
app.command()(verify.sign)
app.command("data")(resources.make_data)
app.add_typer(fetching, name="fetch")
fetching.command("mnist")(resources.fetch_mnist)
fetching.command("intents")(resources.fetch_intents)
fetching.command("backbone")(resources.fetch_backbone)
fetching.command("adapters-data")(adapters.fetch_texts)
app.add_typer(caching, name="cache")
caching.command("info")(resources.cache_info)
caching.command("clear")(resources.cache_clear)
app.add_typer(keeping, name="experts")
keeping.command("list")(experts.list_experts)
keeping.command()(experts.add)
keeping.command()(experts.remove)
keeping.command()(experts.replace)
keeping.command()(experts.kit)
keeping.command()(experts.train)
keeping.command()(experts.diff)
app.add_typer(routing, name="router")
routing.command("train")(experts.train_router)
app.add_typer(adapting, name="adapters")
adapting.command()(adapters.add)
adapting.command("list")(adapters.list_adapters)
adapting.command()(adapters.remove)
adapting.command()(adapters.save)
adapting.command("export-decomposer")(adapters.export_decomposer)
app.command()(adapters.generate)
app.command()(resources.doctor)
app.command("list")(run.list_tasks)


def main(words: list[str] | None = None) -> None:
    """Run a command; a `RedxError` is printed as one sentence, with exit code 2, or 1 for a refused expert."""
    words = list(sys.argv[1:] if words is None else words)
    progress.note_loading()
    debug = "--debug" in words
    try:
        app([word for word in words if word != "--debug"])
    except RedxError as error:
        if debug:
            raise
        say(f"redx: {error}", error=True)
        sys.exit(1 if isinstance(error, RefusedError) else 2)
    finally:
        progress.clear_note()
