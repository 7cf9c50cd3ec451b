"""Starts the server: one socket, one process, and an end by Ctrl+C."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from redx.errors import RedxError
from redx.serve.guard import App

SHORTEST_TOKEN = 16  # characters
NEEDED = ("fastapi", "uvicorn", "prometheus_client")
BACKLOG = 2048  # connections that wait to be accepted


def require_packages() -> None:
    """Refuse to serve without the packages of the extra `serve`."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise RedxError(f"A server needs {' and '.join(missing)}; install with `pip install 'redx[serve]'`.")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuse to serve other machines without a token, or with one that is easily guessed."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise RedxError(f"A token has at least {SHORTEST_TOKEN} characters of plain ASCII; choose a longer one.")
    if token is None and not is_loopback(host):
        raise RedxError(
            f"{host} can be reached from other machines; give a token of {SHORTEST_TOKEN} characters with --token."
        )


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises
    ------
    RedxError
        Where the port is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise RedxError(
                f"Port {port} of {host} is in use; choose another with --port, or 0 for a free one."
            ) from error
        reason = getattr(error, "strerror", None) or error
        raise RedxError(
            f"Cannot serve on {host}, port {port} ({reason}); choose others with --host and --port."
        ) from error
    return listener


@contextmanager
def _ending_quietly(server: Any) -> Iterator[None]:
    """Let Ctrl+C and SIGTERM end the server as what is meant to end it; uvicorn would raise the signal again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    server.capture_signals = nullcontext
    handlers = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def serve_run(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    seed: int | None = None,
    audit: Path | None = None,
    hashed: bool = False,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a finished run until the process is interrupted.

    Parameters
    ----------
    folder, seed
        The run folder, and which of its seeds; the first by default.
    host, port
        Where to serve; port 0 takes a free one.
    token
        What clients must send; required where the host is not a loopback address.
    audit, hashed
        File that records every answer, and whether it holds hashes instead of inputs.
    ready
        Called with the address when the server is about to accept requests.
    """

    @contextmanager
    def opened() -> Iterator[App]:
        from redx.serve.app import build_app
        from redx.serve.audit import AuditFile
        from redx.serve.service import Service

        service = Service(folder, seed, AuditFile(audit, hashed) if audit else None)
        try:
            yield build_app(service, is_loopback(host), token)
        finally:
            service.close()

    serve_app(opened, host, port, token, ready)


def serve_app(
    opened: Callable[[], AbstractContextManager[App]],
    host: str,
    port: int,
    token: str | None,
    ready: Callable[[str], None],
    page: bool = True,
) -> None:
    """Serve an application until the process is interrupted.

    Parameters
    ----------
    opened
        Opens the application, after host, port and token have been checked.
    host, port, token, ready
        As for `serve_run`.
    page
        Whether there is a page, to which the address hands the token.
    """
    require_packages()
    import uvicorn

    check_token(host, token)
    listener = open_socket(host, port)
    try:
        with opened() as app:
            settings = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=5,
            )
            shown = f"[{host}]" if ":" in host and host[0] != "[" else host
            ready(f"http://{shown}:{listener.getsockname()[1]}/" + (f"#token={token}" if token and page else ""))
            server = uvicorn.Server(settings)
            with _ending_quietly(server):
                server.run(sockets=[listener])
    finally:
        listener.close()
