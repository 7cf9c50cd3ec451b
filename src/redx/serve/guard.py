"""What stands before the API: bounds on bodies, checks of host, origin and token, and headers of every response."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 4 * 2**20  # bytes of one request
MAX_BODIES = 64 * 2**20  # bytes of all requests that are being read or answered
SECRET = ("/api", "/metrics", "/openapi.json")  # paths that need the token
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def describe(refused: Refused) -> dict[str, Any]:
    """Return the body of a refusal."""
    return {"error": refused.sentence}


class Guard:
    """Checks requests before the application sees them.

    Parameters
    ----------
    app
        The application.
    loopback
        Whether only this machine is served: then the Host header must name it, so that no foreign page whose name is
        made to point here (DNS rebinding) can read answers.
    token
        What the Authorization header of a request to the API must carry; None for nothing.
    max_body, max_bodies
        Bounds on the bytes of one body, and of all bodies at a time.
    secret
        How the paths begin that need the token.
    describe
        Gives the JSON of a refusal.
    """

    def __init__(
        self,
        app: App,
        loopback: bool,
        token: str | None,
        max_body: int = MAX_BODY,
        max_bodies: int = MAX_BODIES,
        secret: tuple[str, ...] = SECRET,
        describe: Callable[[Refused], dict[str, Any]] = describe,
    ) -> None:
        self.app, self.loopback, self.token = app, loopback, token
        self.max_body, self.max_bodies = max_body, max_bodies
        self.secret, self.describe = secret, describe
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send) if scope["type"] == "lifespan" else None
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                given = {name for name, _ in message.get("headers", [])}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in given]
                extra += [] if b"cache-control" in given else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        held = 0
        try:
            self._check(scope, headers)
            body, held = await self._read(headers, receive)
            await self.app(scope, _replay(body, receive), send_with_headers)
        except Refused as refused:
            if not started:
                await respond(send_with_headers, refused, self.describe(refused))
        finally:
            self._held -= held

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if self.loopback and (urlsplit(f"//{host}").hostname or "") not in LOOPBACK:
            raise Refused(421, "This server answers requests to this machine only; open it as http://127.0.0.1.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refused(403, "Requests from pages of other origins are refused.")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"].startswith(self.secret):
            raise Refused(403, "Requests from pages of other origins are refused.")
        secret = scope["path"].startswith(self.secret)
        if secret and self.token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                raise Refused(
                    401,
                    "This server needs its token; send it as Authorization: Bearer TOKEN.",
                    www_authenticate="Bearer",
                )

    async def _read(self, headers: dict[str, str], receive: Receive) -> tuple[bytes, int]:
        """Return the body, and how many bytes of the bound on all bodies it takes."""
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.max_body:
            raise Refused(413, f"The request has {int(length):,} bytes; send at most {self.max_body:,}.")
        chunks, size = [], 0
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    break
                chunk = message.get("body", b"")
                size += len(chunk)
                self._held += len(chunk)
                if size > self.max_body:
                    raise Refused(413, f"The request has more than {self.max_body:,} bytes; send fewer.")
                if self._held > self.max_bodies:
                    raise Refused(503, "Too many requests wait; try again in a second.", retry_after="1")
                chunks.append(chunk)
                if not message.get("more_body"):
                    break
        except BaseException:
            self._held -= size
            raise
        return b"".join(chunks), size


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the body once, and then whatever the server says."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def respond(send: Send, refused: Refused, body: dict[str, Any]) -> None:
    """Send a refusal as JSON."""
    content = json.dumps(body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), **refused.headers}
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": named})
    await send({"type": "http.response.body", "body": content})
