"""A served run for tests: the application alone, or a server on a free port of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from redx.serve.app import build_app
from redx.serve.audit import AuditFile
from redx.serve.server import open_socket
from redx.serve.service import Service


@contextmanager
def asking(folder: Path, audit: Path | None = None, hashed: bool = False, **settings: Any) -> Iterator[TestClient]:
    """Yield a client of the application of a run; no socket is opened."""
    service = Service(folder, audit=AuditFile(audit, hashed) if audit else None)
    try:
        app = build_app(service, **settings)
        with TestClient(app, base_url="http://127.0.0.1") as client:  # type: ignore[arg-type]
            client.service = service  # type: ignore[attr-defined]
            yield client
    finally:
        service.close()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Service]]:
    """Yield the address of a server of a run, in a thread of this process, and the served run."""
    service = Service(folder)
    try:
        with serving_app(build_app(service)) as url:
            yield url, service
    finally:
        service.close()


@contextmanager
def serving_app(app: Any) -> Iterator[str]:
    """Yield the address of a server of an application, in a thread of this process."""
    listener = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", backlog=2048, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
