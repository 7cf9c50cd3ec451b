"""The verbs around the page: serve, and replay and monitor for its audit files."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redx.cli import early
from redx.cli.common import AsJson, Folder, OneSeed, print_json, say, show_table

if TYPE_CHECKING:
    from redx.serve.guard import App

SHOWN = 20  # differences that replay prints


def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="address to serve; other machines need --token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0 takes a free one", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(help="what clients must send; at least 16 characters", envvar="REDX_TOKEN")
    ] = None,
    audit: Annotated[Path | None, typer.Option(help="append one JSON line for every answer to this file")] = None,
    audit_hashes: Annotated[
        bool, typer.Option("--audit-hashes", help="write hashes of the inputs there, not the inputs")
    ] = False,
    top: Annotated[
        int | None, typer.Option(help="of adapters: run only this many for a text, without radii", show_default="all")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="of adapters: their language model", show_default="the library's")
    ] = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Serve a page and an HTTP API of a finished run: ask, play the adversary, switch experts off.

    Nothing in the run is changed. The API is described at /docs. Ctrl+C ends it. A library or run of adapters is served
    with OpenAI's protocol instead, at /v1: the models are `redx` (routed), `base`, and each adapter.

    Example: `redx serve runs/intents --audit answers.jsonl`
    """
    from redx.adapters.library import holds_adapters
    from redx.errors import RedxError
    from redx.serve.server import is_loopback, require_packages, serve_app, serve_run

    def ready(url: str) -> None:
        if as_json:
            return print(json.dumps({"url": url}), flush=True)
        say(f"{folder} is served at {url}", "Ctrl+C ends it.")

    if holds_adapters(folder):
        require_packages()
        from redx.endpoint.app import open_endpoint

        def opened() -> AbstractContextManager[App]:
            return open_endpoint(folder, top, backbone, seed, audit, audit_hashes, is_loopback(host), token)

        return serve_app(opened, host, port, token, ready, page=False)
    if top is not None or backbone is not None:
        raise RedxError(f"{folder} holds no adapters; leave --top and --backbone out.")
    serve_run(folder, host, port, token, seed, audit, audit_hashes, ready)


def replay(
    file: Annotated[
        Path, typer.Argument(help="file that `redx serve --audit` wrote", metavar="FILE", callback=early.present)
    ],
    folder: Folder,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="that of the file")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer the lines of an audit file again, and report every line whose answer differs; then the exit code is 1.

    Weights, radii and cut-offs may differ by rounding (1e-4), since rounding depends on what is answered together.

    Example: `redx replay answers.jsonl runs/intents`
    """
    from redx.serve.audit import replay_file

    result = replay_file(file, folder, seed)
    if as_json:
        print_json(result.to_dict())
    else:
        if result.differences:
            rows = [[str(one.line), one.field, str(one.before), str(one.now)] for one in result.differences[:SHOWN]]
            show_table(["line", "differs in", "before", "now"], rows, f"{file} against {folder}")
        again = result.lines - result.hashed
        say(f"{again} of {result.lines} lines were answered again, {len(result.differences)} differ.")
        if result.hashed:
            say(f"{result.hashed} lines hold only a hash of their input, so they cannot be answered again.")
        if result.changed:
            say(f"Changed since then: {', '.join(result.changed)}.")
    if not result.same:
        raise typer.Exit(1)


def monitor(
    folder: Folder,
    audit: Annotated[
        Path, typer.Argument(help="file that `redx serve --audit` wrote", metavar="AUDIT", callback=early.present)
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="table of true labels: id of an answer, label; domain where labels name none", callback=early.present
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="probability that any of the tests ever raises a false alarm", callback=early.shares)
    ] = 0.05,
    seed: Annotated[int | None, typer.Option(help="seed of the run", show_default="that of the file")] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether the promise of a run still holds on the answers that were given; exit code 1 on an alarm.

    With labels: whether the harm exceeds the risk. Without: whether the confidences are like those of the calibration
    examples. Both tests may be repeated whenever the files have grown.

    Example: `redx monitor runs/intents answers.jsonl --labels labels.csv`
    """
    from redx.serve.monitor import monitor_file

    report = monitor_file(folder, audit, labels, delta, seed)
    if as_json:
        print_json(report.to_dict())
    else:
        rows = [_monitor_row(reading) for reading in report.watch.monitor.readings()]
        show_table(["", "lines", "harmed", "harm", "at least", "e-value", "alarm"], rows)
        say(_thresholds(report.watch.monitor))
        if report.left_out:
            say(f"The promise is not about {report.left_out:,} of {report.lines:,} lines; they were left out.")
        if report.labels_left_out:
            say(f"So were {report.labels_left_out:,} of {report.labels:,} labels.")
        say(report.verdict)
    if report.alarm:
        raise typer.Exit(1)


def _thresholds(monitor: Any) -> str:
    """Return which risk was promised, and which e-values are an alarm."""
    deltas, where = monitor.deltas, "in each domain" if monitor.tested else "over all lines together"
    of_domains = "" if deltas.domain is None else f", {1 / deltas.domain:.4g} of a domain"
    levels = f"{1 / deltas.overall:.4g} of all lines{of_domains} and {1 / deltas.confidences:.4g} of confidences"
    return f"The promised risk is {monitor.risk:.4g} {where}. An alarm is an e-value of {levels}."


def _monitor_row(reading: Any) -> list[str]:
    def figure(value: float | None, form: str) -> str:
        return "—" if value is None else format(value, form)

    harmed = "—" if reading.harmed is None else f"{reading.harmed:g}"
    tested = "—" if reading.threshold is None else ("yes" if reading.alarm else "no")
    figures = [figure(reading.harm, ".4f"), figure(reading.lower, ".4f"), figure(reading.e_value, ".3g")]
    return [reading.name, f"{reading.lines:,}", harmed, *figures, tested]
