"""Commands as processes of their own, and signals to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import redx
from faults.injection import Ended

SOURCE = str(Path(redx.__file__).parents[1])


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command inside a folder."""
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "REDX_CACHE": "cache"}
    command = [sys.executable, "-m", "redx", *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_accept_interrupts,
    )


def _accept_interrupts() -> None:
    """Let a command that is started in the background, where shells ignore SIGINT, be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait(process: subprocess.Popen[str]) -> Ended:
    """Wait for a command to end."""
    out, err = process.communicate(timeout=900)
    return Ended(process.returncode, out, err, [])


def wait_for_handler(process: subprocess.Popen[str]) -> None:
    """Wait until Python has started and the command handles SIGTERM itself."""
    while process.poll() is None:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.002)


def send(words: list[str], folder: Path, number: signal.Signals, delay: float) -> Ended:
    """Start a command, send it a signal after so many seconds, and return how it ended."""
    process = start(words, folder)
    wait_for_handler(process)
    time.sleep(delay)
    process.send_signal(number)
    return wait(process)
