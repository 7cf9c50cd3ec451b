"""Connect to a Ray cluster, or start Ray on this machine; what can be wrong is told in one sentence."""

from __future__ import annotations

import logging
import os
import socket

from redx.errors import RedxError

SECONDS = 5.0  # to wait for an answer of the cluster's port
SETTINGS = 4  # type of the frame that a server of HTTP/2 sends first
STORE = 2**30  # bytes of the object store of a Ray that is started here; what does not fit goes to disk
ADVICE = "start one with `ray start --head`, or leave out --address to start Ray here"


def check_address(address: str | None) -> str | None:
    """Return the address of a cluster, None for no cluster, or raise `RedxError` where nothing answers.

    Parameters
    ----------
    address
        `auto`, HOST:PORT, or None for what RAY_ADDRESS says, which `ray job submit` sets.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "auto"):
        return address
    if "://" in address:
        raise RedxError(
            f"{address} is an address of Ray's client; run the command on the cluster with `ray job submit` instead."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RedxError(f"{address!r} is no address of a Ray cluster; write auto or HOST:PORT.")
    try:
        with socket.create_connection((host, int(port)), SECONDS) as connection:
            is_ray = os.environ.get("RAY_USE_TLS", "0") != "0" or _answers_grpc(connection)
    except OSError as error:
        raise RedxError(f"No Ray cluster answers at {address} ({error.strerror or error}); {ADVICE}.") from error
    if not is_ray:
        raise RedxError(f"No Ray cluster answers at {address} (something else does); {ADVICE}.")
    return address


def _answers_grpc(connection: socket.socket) -> bool:
    """Return whether a port answers like a gRPC server; Ray itself would wait for minutes at one that does not."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    header = connection.recv(9)
    return len(header) > 3 and header[3] == SETTINGS


def connect(address: str | None) -> None:
    """Connect this process to a cluster; without an address, start Ray on this machine, on loopback alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    import ray

    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init("local", include_dashboard=False, object_store_memory=STORE, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:160]
        if address is None:
            raise RedxError(f"Ray does not start on this machine ({reason}); use --engine local.") from error
        raise RedxError(f"No Ray cluster answers at {address} ({reason}); {ADVICE}.") from error
