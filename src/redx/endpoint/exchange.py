"""One request with its answers: it hands prompts to the engine, and tells tokens as they come, or all at the end."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from redx.adapters.base import BaseLM
from redx.adapters.options import GenerationOptions
from redx.adapters.running import NextToken
from redx.endpoint.answers import Answer, usage
from redx.endpoint.bodies import CommonBody
from redx.endpoint.engine import Engine
from redx.endpoint.errors import ApiError, as_refused, describe
from redx.endpoint.job import Event, Job
from redx.endpoint.record import record
from redx.errors import RedxError
from redx.serve.audit import AuditFile
from redx.serve.bodies import json_response

EVENTS = "text/event-stream; charset=utf-8"


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


def _event(value: dict[str, Any]) -> bytes:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {content}\n\n".encode(errors="backslashreplace")
