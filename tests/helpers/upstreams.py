"""A server with OpenAI's paths on this machine, which records what it is asked and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENTS = [b'data: {"text": "one"}\n\n', b'data: {"text": "two"}\n\n', b"data: [DONE]\n\n"]


class Recorded(ThreadingHTTPServer):
    """What the server was asked, and what it answers next."""

    asked: list[tuple[str, dict[str, Any], dict[str, str]]]
    status = 200
    location: str | None = None
    go_on: threading.Event
    hung_up: threading.Event


class Handler(BaseHTTPRequestHandler):
    """Answers a request by the settings of its server."""

    server: Any

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, dict(self.headers)))
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        if not body.get("stream"):
            content = json.dumps({"model": body["model"]}).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.wfile.write(EVENTS[0])
            while not self.server.go_on.wait(0.02):
                self.wfile.write(b": wait\n\n")
            for event in EVENTS[1:]:
                self.wfile.write(event)
        except OSError:
            self.server.hung_up.set()


@contextmanager
def upstream_server() -> Iterator[tuple[str, Recorded]]:
    """Yield the address of a server, and what it records; streams go on after `go_on` is set."""
    with Recorded(("127.0.0.1", 0), Handler) as server:
        server.asked, server.go_on, server.hung_up = [], threading.Event(), threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server
        finally:
            server.go_on.set()
            server.shutdown()
            thread.join(5)
