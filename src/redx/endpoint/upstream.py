"""Another server that requests are handed on to; its redirects are not followed, and its streams are passed through."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from redx.endpoint.errors import ApiError
from redx.errors import RedxError

CONNECTIONS = 256  # requests that are handed on at a time
CONNECT_SECONDS, SILENT_SECONDS = 10, 600  # until the upstream is taken for down, and for hung
MAX_ANSWER = 64 * 2**20  # bytes of an answer that is no stream
CHUNK = 2**16
STREAM = "text/event-stream"


@dataclass
class Passed:
    """What the upstream answered: the status, the type, and the content as it comes."""

    status: int
    kind: str
    content: AsyncIterator[bytes]


class Upstream:
    """A server with OpenAI's API.

    Parameters
    ----------
    url
        Its address, such as http://127.0.0.1:8000, with or without /v1 at its end.
    token
        What is sent to it as Authorization: Bearer TOKEN; None for nothing.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RedxError(f"{url} is no address ({error}); write http://HOST:PORT.") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise RedxError(f"{url} is no address of a server; write http://HOST:PORT.")
        if parts.username is not None:
            raise RedxError("The address of the upstream holds a password; give it with --upstream-token instead.")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise RedxError("The token of the upstream has characters other than plain ASCII; change it.")
        self.url, self.token = url, token
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._threads = ThreadPoolExecutor(CONNECTIONS, "redx-upstream")

    def close(self) -> None:
        """End the threads that wait for the upstream."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def post(self, path: str, body: bytes) -> Passed:
        """Hand a request on.

        Parameters
        ----------
        path
            The path, from /v1 on.
        body
            JSON.

        Raises
        ------
        ApiError
            With status 502, where the upstream cannot be reached, or answers with a redirect or no HTTP.
        """
        loop = asyncio.get_running_loop()
        connection = self._connection()
        task = loop.run_in_executor(self._threads, self._start, connection, path, body)
        try:
            response = await asyncio.shield(task)
        except asyncio.CancelledError:
            _hang_up(connection)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        except (OSError, http.client.HTTPException) as error:
            _hang_up(connection)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            sentence = f"The upstream {self.url} cannot be reached ({reason}); start it, or change --upstream."
            raise ApiError(502, sentence, code="upstream") from error
        kind = response.getheader("Content-Type", "application/octet-stream")
        if 300 <= response.status < 400:
            _hang_up(connection)
            raise ApiError(502, f"The upstream {self.url} sends elsewhere, which is not followed.", code="upstream")
        if kind.startswith(STREAM):
            return Passed(response.status, kind, self._stream(connection, response))
        try:
            content = await loop.run_in_executor(self._threads, response.read, MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(502, f"The upstream {self.url} broke off its answer.", code="upstream") from error
        finally:
            _hang_up(connection)
        if len(content) > MAX_ANSWER:
            raise ApiError(502, f"The upstream {self.url} answered more than {MAX_ANSWER:,} bytes.", code="upstream")
        return Passed(response.status, kind, _once(content))

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=CONNECT_SECONDS)

    def _start(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> http.client.HTTPResponse:
        connection.connect()
        connection.sock.settimeout(SILENT_SECONDS)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.redx_socket = connection.sock  # type: ignore[attr-defined]  # the response takes it away
        connection.request("POST", self._path + path, body, headers)
        return connection.getresponse()

    async def _stream(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        try:
            while chunk := await asyncio.shield(loop.run_in_executor(self._threads, response.read1, CHUNK)):
                yield chunk
        except (OSError, http.client.HTTPException):
            yield b'data: {"error": {"message": "The upstream broke off its answer.", "type": "server_error"}}\n\n'
        finally:
            _hang_up(connection)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End a connection, also one that another thread reads from."""
    sock: socket.socket | None = getattr(connection, "redx_socket", connection.sock)
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    connection.close()


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
