"""Signals: one sentence, the right exit code, and a run that can be continued."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from faults.processes import send
from faults.signals import signal_at_random
from faults.worlds import Worlds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
VERBS = ("experts remove", "router train", "export")


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_during_the_first_imports_gives_one_sentence(
    worlds: Worlds, number: signal.Signals, word: str, delay: float
) -> None:
    ended = send(["certify", "run"], worlds.template, number, delay)
    assert ended.code == 128 + number
    assert ended.err == f"redx: {word}; the same command continues where it stopped.\n"


def test_the_command_handles_signals_before_it_imports_anything_slow() -> None:
    """Before that, while Python itself starts, Ctrl-C is answered by Python."""
    code = "import re, sys; before = set(sys.modules); import redx.__main__; print(*set(sys.modules) - before)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in ended.stdout.split() if not name.startswith(("importlib", "redx"))}
    assert loaded <= {"__future__", "signal", "warnings", "os", "enum"}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_a_random_moment_loses_nothing(worlds: Worlds, name: str, number: signal.Signals) -> None:
    problems = signal_at_random(worlds, name, number, seed=0)
    assert not problems, problems


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_work_is_done_changes_nothing(number: signal.Signals) -> None:
    code = f"""
import atexit, os, sys
from redx.__main__ import main
atexit.register(lambda: os.kill(os.getpid(), {int(number)}))  # while Python shuts down
sys.argv = ["redx", "--help"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
