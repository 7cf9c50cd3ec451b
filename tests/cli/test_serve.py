"""The verb serve: addresses, ports and tokens, and an end without an error."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import redx
from helpers.commands import Ask, refused


def test_a_port_in_use_is_one_sentence(ask: Ask, clouds: redx.Run) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(ask("serve", clouds.folder, "--port", port), f"Port {port}", "in use", "--port")


def test_other_machines_need_a_token(ask: Ask, clouds: redx.Run) -> None:
    refused(ask("serve", clouds.folder, "--host", "0.0.0.0"), "--token")
    refused(ask("serve", clouds.folder, "--token", "short"), "16 characters")
    refused(ask("serve", clouds.folder, "--host", "nobody.invalid", "--token", "x" * 16), "--host")


def test_a_folder_without_a_run_is_one_sentence(ask: Ask, tmp_path: Path) -> None:
    refused(ask("serve", tmp_path, "--port", "0"), "config.json")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended(clouds: redx.Run, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "redx", "serve", str(clouds.folder), "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}healthz", timeout=60) as response:
            assert json.load(response)["status"] == "ok"
        server.send_signal(number)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0
    assert errors == ""
