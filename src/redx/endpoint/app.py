"""OpenAI's protocol over a library of adapters: models, completions and chats, whole or as server-sent events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redx.adapters.chat import chat_text
from redx.adapters.library import library_folder, open_base, read_library
from redx.endpoint.bodies import ChatBody, CompletionBody, read
from redx.endpoint.engine import Engine
from redx.endpoint.errors import add_errors, describe
from redx.endpoint.exchange import Exchange
from redx.endpoint.models import describe_model, find_model, list_models
from redx.endpoint.record import KIND
from redx.serve.audit import AuditFile
from redx.serve.bodies import json_response
from redx.serve.guard import Guard
from redx.serve.loaded import redx_version
from redx.serve.metrics import CONTENT_TYPE, Metered, Metrics

SECRET = ("/v1", "/metrics")
MAX_TOKENS, MAX_CHAT_TOKENS = 16, 512  # new tokens where a request does not say how many


@contextmanager
def open_endpoint(
    folder: Path,
    top: int | None = None,
    backbone: str | None = None,
    seed: int | None = None,
    audit: Path | None = None,
    hashed: bool = False,
    loopback: bool = True,
    token: str | None = None,
) -> Iterator[Metered]:
    """Yield the application of a library of adapters.

    Parameters
    ----------
    folder, backbone, seed
        As for `ComposedLM.from_pretrained`.
    top
        How many adapters the model `redx` runs; None for all.
    audit, hashed
        File that records every answer, and whether it holds hashes instead of texts.
    loopback, token
        As for `redx.serve.app.build_app`.
    """
    run = library_folder(folder, seed)
    file = AuditFile(audit, hashed, KIND) if audit else None
    try:
        engine = Engine(run, open_base(read_library(run), backbone), top=top)
        try:
            yield build_endpoint(engine, file, loopback, token)
        finally:
            engine.close()
    finally:
        if file is not None:
            file.close()


def build_endpoint(
    engine: Engine, audit: AuditFile | None = None, loopback: bool = True, token: str | None = None
) -> Metered:
    """Return the application of an engine; arguments as for `open_endpoint`."""
    app = FastAPI(title="redx serve", version=redx_version(), docs_url=None, redoc_url=None, openapi_url=None)
    metrics = Metrics(EngineFigures(engine))
    started = int(time.time())
    add_errors(app)

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(list_models(engine.names, started))

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        find_model(name, engine.names)
        return json_response(describe_model(name, started))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read(request, CompletionBody)
        limit = MAX_TOKENS if body.max_tokens is None else body.max_tokens
        exchange = Exchange(engine, audit, body, "text_completion", "cmpl")
        for index, text in enumerate(body.prompt):
            exchange.ask(text, lambda _, text=text: text, limit, index, body.logprobs)
        return await exchange.respond(request)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await read(request, ChatBody)
        given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        messages = [message.plain for message in body.messages]
        exchange = Exchange(engine, audit, body, "chat.completion", "chatcmpl")
        limit = MAX_CHAT_TOKENS if given is None else given
        told = body.top_logprobs if body.logprobs else None
        exchange.ask(messages, lambda base: chat_text(base, messages), limit, 0, told, fill=given is None)
        return await exchange.respond(request)

    @app.get("/healthz")
    async def health() -> Response:
        return json_response({"status": "ok", "waiting": engine.waiting, "running": engine.running})

    @app.get("/metrics")
    async def figures() -> Response:
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    paths = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    return Metered(Guard(app, loopback, token, secret=SECRET, describe=describe), metrics, paths)


class EngineFigures(Collector):
    """Reads what an engine has counted, when Prometheus asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        engine = self._engine
        tokens = CounterMetricFamily("redx_tokens", "Tokens by model", labels=["model"])
        for name, count in sorted(engine.tokens.copy().items()):
            tokens.add_metric([name], count)
        yield tokens
        yield GaugeMetricFamily("redx_waiting_texts", "Texts in the queue", value=engine.waiting)
        yield GaugeMetricFamily("redx_running_texts", "Texts that are being continued", value=engine.running)
