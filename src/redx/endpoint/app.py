"""OpenAI's protocol over a library of adapters: models, completions and chats, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redx.adapters.base import BaseLM
from redx.adapters.chat import chat_text
from redx.adapters.library import library_folder, open_base, read_library
from redx.adapters.options import GenerationOptions
from redx.adapters.running import NextToken
from redx.endpoint.answers import Answer, usage
from redx.endpoint.bodies import ChatBody, CommonBody, CompletionBody, read
from redx.endpoint.engine import Engine, Event, Job
from redx.endpoint.errors import ApiError, add_errors, as_refused, describe
from redx.endpoint.models import describe_model, find_model, list_models
from redx.endpoint.record import KIND, record
from redx.errors import RedxError
from redx.serve.audit import AuditFile
from redx.serve.bodies import json_response
from redx.serve.guard import Guard
from redx.serve.loaded import redx_version
from redx.serve.metrics import CONTENT_TYPE, Metered, Metrics

SECRET = ("/v1", "/metrics")
MAX_TOKENS, MAX_CHAT_TOKENS = 16, 512  # new tokens where a request does not say how many
EVENTS = "text/event-stream; charset=utf-8"


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


class Exchange:
    """One request with its answers.

    Parameters
    ----------
    engine, audit
        What continues texts, and where answers are recorded.
    body
        The request.
    kind, prefix
        OpenAI's word for the answer, and how its id begins.
    """

    def __init__(self, engine: Engine, audit: AuditFile | None, body: CommonBody, kind: str, prefix: str) -> None:
        self.engine, self.audit, self.body, self.kind = engine, audit, body, kind
        self.head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if body.stream and kind == "chat.completion" else kind,
            "created": int(time.time()),
            "model": body.model,
        }
        self.answers: list[Answer] = []
        self.asked: list[Any] = []
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._seed = secrets.randbits(62) if body.seed is None else body.seed
        self._recorded = 0

    def ask(
        self,
        asked: Any,
        prompt: Callable[[BaseLM], str],
        limit: int,
        index: int,
        alternatives: int | None,
        fill: bool = False,
    ) -> None:
        """Prepare the text of one prompt; arguments as for `Job` and `Answer`."""
        body = self.body
        options = GenerationOptions(
            max_new_tokens=limit,
            weights=body.redx.weights,
            temperature=body.temperature,
            top_p=body.top_p,
            seed=self._seed + index,
            top=body.redx.top,
            stop=body.stop,
        )
        job = Job(body.model, prompt, options, self._deliver(index), fill, alternatives or 0)
        decode = self.engine.base.tokenizer.decode
        self.asked.append(asked)
        self.answers.append(Answer(job, self.kind == "chat.completion", index, decode, alternatives is not None))

    def _deliver(self, index: int) -> Callable[[Event], None]:
        def deliver(event: Event) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

        return deliver

    async def respond(self, request: Request) -> Response:
        """Return the answers, or a stream of them; errors before the first token have a status of their own."""
        tokens = self._tokens()
        if not self.body.stream:
            return await self._whole(request, tokens)
        first = await anext(tokens)
        return StreamingResponse(self._stream(first, tokens), media_type=EVENTS)

    async def _tokens(self) -> AsyncIterator[tuple[Answer, NextToken]]:
        """Yield the tokens of all answers as they come."""
        running = len(self.answers)
        try:
            for answer in self.answers:
                self.engine.submit(answer.job)
            while running:
                index, event = await self._events.get()
                if isinstance(event, Exception):
                    raise as_refused(event) from event
                running -= event.stopped is not None
                yield self.answers[index], event
        finally:
            for answer in self.answers:
                if answer.finished is None:
                    self.engine.cancel(answer.job)

    async def _whole(self, request: Request, tokens: AsyncIterator[tuple[Answer, NextToken]]) -> Response:
        async def collect() -> None:
            async for answer, token in tokens:
                answer.add(token)

        async def hang_up() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        work, gone = asyncio.create_task(collect()), asyncio.create_task(hang_up())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=499)  # nobody reads it
            work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            if any(answer.tokens for answer in self.answers):
                self._record()
        choices = [answer.whole() for answer in self.answers]
        return json_response({**self.head, "choices": choices, "usage": usage(self.answers)})

    async def _stream(
        self, first: tuple[Answer, NextToken], tokens: AsyncIterator[tuple[Answer, NextToken]]
    ) -> AsyncIterator[bytes]:
        """Yield events; an answer is recorded before its last token is told."""
        answer, token = first
        try:
            while True:
                piece = answer.add(token)
                if answer.finished is not None and all(other.finished for other in self.answers):
                    self._record()
                yield _event({**self.head, "choices": [piece]})
                try:
                    answer, token = await anext(tokens)
                except StopAsyncIteration:
                    break
            if self.body.stream_options.include_usage:
                yield _event({**self.head, "choices": [], "usage": usage(self.answers)})
            yield b"data: [DONE]\n\n"
        except Exception as error:  # the status is told already
            yield _event(describe(as_refused(error)))
        finally:
            await tokens.aclose()  # type: ignore[attr-defined]
            self._record()

    def _record(self) -> None:
        """Append the lines of all answers to the audit file, once."""
        if self.audit is None or self._recorded:
            return
        self._recorded = len(self.answers)
        try:
            for answer, asked in zip(self.answers, self.asked, strict=True):
                record(self.audit, self.engine.library, answer, asked)
        except RedxError as error:  # such as a full disk: no fault of the client
            raise ApiError(503, str(error)) from error


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


def _event(value: dict[str, Any]) -> bytes:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {content}\n\n".encode(errors="backslashreplace")
