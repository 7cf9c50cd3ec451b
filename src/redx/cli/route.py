"""The verb route: the adapter for a prompt, printed or over HTTP, alone or before another server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from redx.cli.adapters import Backbone, Library
from redx.cli.common import AsJson, OneSeed, print_json, say, show_table


def route(
    run: Library,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="texts to route", metavar="PROMPT…", show_default=False)
    ] = None,
    cutoff: Annotated[
        float | None, typer.Option(help="log-odds that an adapter must exceed", show_default="calibrated, or 0")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="answer POST /route instead of prompts given here")] = False,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="server with OpenAI's API that requests are handed on to", show_default="none"
        ),
    ] = None,
    upstream_token: Annotated[
        str | None, typer.Option(help="token that the upstream asks for", envvar="REDX_UPSTREAM_TOKEN")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="ADAPTER=NAME", help="the upstream's name of an adapter; repeatable", show_default="same"),
    ] = None,
    base_name: Annotated[
        str | None, typer.Option(help="the upstream's name of the base", show_default="the library's")
    ] = None,
    host: Annotated[str, typer.Option(help="address to serve; other machines need --token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0 takes a free one", min=0, max=65535)] = 8001,
    token: Annotated[
        str | None, typer.Option(help="what clients must send; at least 16 characters", envvar="REDX_TOKEN")
    ] = None,
    backbone: Backbone = None,
    seed: OneSeed = None,
    as_json: AsJson = False,
) -> None:
    """Choose an adapter for a prompt, or none where no adapter is sure; no adapter runs.

    With --serve and --upstream it stands before vLLM, SGLang or LoRAX: requests for the model `redx` go there with the
    name of the chosen adapter.

    Example: `redx route runs/adapters "def add(a, b):"`
    """
    from redx.errors import RedxError

    texts = prompts or []
    if serve == bool(texts):
        raise RedxError("Give prompts to route, or --serve, and not both.")
    if not serve and (upstream or name or base_name):
        raise RedxError("--upstream, --name and --base-name belong to a server; add --serve.")
    if serve:
        return _serve(
            run, upstream, upstream_token, name or [], base_name, cutoff, backbone, seed, host, port, token, as_json
        )
    from redx.adapters.choosing import PromptRouter

    router = PromptRouter.from_pretrained(run, cutoff, backbone, seed=seed)
    choices = [router.route(text) for text in texts]
    if as_json:
        return print_json([choice.to_dict() for choice in choices])
    rows = [
        [repr(text), choice.adapter or "none (base)", *(f"{choice.scores[scored]:+.2f}" for scored in router.scored)]
        for text, choice in zip(texts, choices, strict=True)
    ]
    show_table(["prompt", "adapter", *router.scored], rows)
    risk = "not calibrated" if router.risk is None else f"calibrated for a risk of {router.risk:g}"
    say(f"An adapter is chosen where its score exceeds {router.cutoff:.4g} ({risk}).")


def _serve(
    run: Path,
    upstream: str | None,
    upstream_token: str | None,
    names: list[str],
    base_name: str | None,
    cutoff: float | None,
    backbone: str | None,
    seed: int | None,
    host: str,
    port: int,
    token: str | None,
    as_json: bool,
) -> None:
    from redx.errors import RedxError
    from redx.serve.server import is_loopback, require_packages, serve_app

    if upstream is None and (names or base_name):
        raise RedxError("--name and --base-name are names of an upstream; add --upstream URL.")
    require_packages()
    from redx.endpoint.routing import open_routing
    from redx.endpoint.upstream import Upstream

    def ready(url: str) -> None:
        if as_json:
            return print(json.dumps({"url": url}), flush=True)
        behind = f", before {upstream}" if upstream else ""
        say(f"prompts of {run} are routed at {url}{behind}", "Ctrl+C ends it.")

    handed_on = None if upstream is None else Upstream(upstream, upstream_token)
    loopback = is_loopback(host)
    serve_app(
        lambda: open_routing(run, handed_on, names, base_name, cutoff, backbone, seed, loopback, token),
        host,
        port,
        token,
        ready,
        page=False,
    )
