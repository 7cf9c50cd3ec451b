"""The router of adapters as an HTTP service: POST /route, and OpenAI's paths handed on to an upstream by its choice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redx.adapters.base import BaseLM
from redx.adapters.chat import chat_text, has_template, plain_text
from redx.adapters.choosing import Choice, PromptRouter
from redx.adapters.library import library_folder, open_base, read_library
from redx.endpoint.bodies import Message, RouteBody, parse, read, read_json
from redx.endpoint.errors import ApiError, add_errors, describe
from redx.endpoint.models import ROUTED, check_names, find_model, list_models
from redx.endpoint.upstream import Upstream
from redx.errors import RedxError
from redx.runs.transaction import read_version
from redx.serve.batching import Batcher
from redx.serve.bodies import json_response
from redx.serve.guard import App, Guard
from redx.serve.loaded import redx_version
from redx.serve.metrics import CONTENT_TYPE, Metered, Metrics

SECRET = ("/v1", "/route", "/metrics")
MAX_WAITING = 1_000  # prompts in the queue


class Names(NamedTuple):
    """How the upstream calls the base, and those adapters that it calls otherwise than the library."""

    base: str
    adapters: dict[str, str]

    def of(self, adapter: str | None) -> str:
        """Return the upstream's name of an adapter, or of the base for None."""
        return self.base if adapter is None else self.adapters.get(adapter, adapter)


class RouteService:
    """Chooses adapters for prompts in one thread, and reads the library again when it was changed.

    Parameters
    ----------
    run
        The folder with library.json.
    base
        The model of the library.
    cutoff
        As for `PromptRouter`.
    """

    def __init__(self, run: Path, base: BaseLM, cutoff: float | None = None) -> None:
        self.run, self.base, self.cutoff = run, base, cutoff
        self.routed, self.abstained = 0, 0
        self._read()
        check_names(self.router.names)
        self.batcher = Batcher(lambda queries: [], max_requests=MAX_WAITING)

    def _read(self) -> None:
        self.version = read_version(self.run)
        self.router = PromptRouter.from_library(self.run, self.base, self.cutoff)

    async def route(self, text: str) -> Choice:
        """Return the adapter for a prompt."""
        return await asyncio.wrap_future(self.batcher.submit(lambda: self._route(text)))

    def _route(self, text: str) -> Choice:
        if read_version(self.run) != self.version:
            self._read()
        choice = self.router.route(text)
        self.routed += 1
        self.abstained += choice.abstain
        return choice

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        self.batcher.close()


@contextmanager
def open_routing(
    folder: Path,
    upstream: Upstream | None = None,
    names: Sequence[str] = (),
    base_name: str | None = None,
    cutoff: float | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    loopback: bool = True,
    token: str | None = None,
) -> Iterator[App]:
    """Yield the application of a router.

    Parameters
    ----------
    folder, cutoff, backbone, seed
        As for `PromptRouter.from_pretrained`.
    upstream
        Where requests are handed on to; None for nowhere.
    names
        `ADAPTER=NAME` for adapters that the upstream calls otherwise.
    base_name
        The upstream's name of the base; by default that of the library.
    loopback, token
        As for `redx.serve.app.build_app`.
    """
    run = library_folder(folder, seed)
    library = read_library(run)
    given = Names(library.base if base_name is None else base_name, read_names(names, library.names))
    service = RouteService(run, open_base(library, backbone), cutoff)
    try:
        yield build_routing(service, upstream, given, loopback, token)
    finally:
        service.close()
        if upstream is not None:
            upstream.close()


def read_names(given: Sequence[str], adapters: Sequence[str]) -> dict[str, str]:
    """Return `ADAPTER=NAME` as a mapping, or refuse an adapter that there is not."""
    names: dict[str, str] = {}
    for text in given:
        adapter, separator, name = text.partition("=")
        if not separator or not name:
            raise RedxError(f"{text!r} is not ADAPTER=NAME; write --name recipes=my-lora.")
        if adapter not in adapters:
            raise RedxError(f"There is no adapter {adapter!r}; choose one of {', '.join(adapters) or 'none'}.")
        names[adapter] = name
    return names


def build_routing(
    service: RouteService,
    upstream: Upstream | None = None,
    names: Names = Names("base", {}),
    loopback: bool = True,
    token: str | None = None,
) -> Metered:
    """Return the application of a router; arguments as for `open_routing`."""
    app = FastAPI(title="redx route", version=redx_version(), docs_url=None, redoc_url=None, openapi_url=None)
    metrics = Metrics(RoutingFigures(service))
    add_errors(app)

    @app.post("/route")
    async def route(request: Request) -> Response:
        body = await read(request, RouteBody)
        text = _chat(service.base, body.messages or []) if body.prompt is None else body.prompt
        choice = await service.route(text)
        return json_response(choice.to_dict())

    @app.get("/healthz")
    async def health() -> Response:
        return json_response({"status": "ok", "waiting": service.batcher.waiting})

    @app.get("/metrics")
    async def figures() -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    if upstream is not None:
        _add_upstream(app, service, upstream, names)
    paths = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    return Metered(Guard(app, loopback, token, secret=SECRET, describe=describe), metrics, paths)


def _add_upstream(app: FastAPI, service: RouteService, upstream: Upstream, names: Names) -> None:
    started = int(time.time())

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(list_models(service.router.names, started))

    async def hand_on(request: Request, path: str) -> Response:
        body = await read_json(request)
        found = find_model(body.get("model"), service.router.names)
        adapter = (await service.route(_text(service.base, body))).adapter if found == ROUTED else found
        content = json.dumps({**body, "model": names.of(adapter)}).encode(errors="backslashreplace")
        passed = await upstream.post(path, content)
        headers = {"Content-Type": passed.kind, "X-Redx-Model": quote(names.of(adapter))}
        return StreamingResponse(passed.content, passed.status, headers)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await hand_on(request, "/v1/completions")

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await hand_on(request, "/v1/chat/completions")


def _text(base: BaseLM, body: dict[str, Any]) -> str:
    """Return what is routed of a request that is handed on."""
    if "messages" in body:
        return _chat(base, parse({"messages": body["messages"]}, RouteBody).messages or [])
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str):
        raise ApiError(400, "One text a request is routed; send a prompt, or messages.", "prompt")
    return prompt


def _chat(base: BaseLM, messages: Sequence[Message]) -> str:
    """Return the text of a chat, in the template of the base where it has one."""
    plain = [message.plain for message in messages]
    return chat_text(base, plain) if has_template(base) else plain_text(plain)


class RoutingFigures(Collector):
    """Reads what a router has counted, when Prometheus asks."""

    def __init__(self, service: RouteService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        service = self._service
        yield CounterMetricFamily("redx_routed", "Prompts that were routed", value=service.routed)
        yield CounterMetricFamily("redx_abstained", "Prompts that no adapter was sure of", value=service.abstained)
        yield GaugeMetricFamily("redx_waiting_prompts", "Prompts in the queue", value=service.batcher.waiting)
