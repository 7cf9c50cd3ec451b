"""Signals: one sentence, the right exit code, and a run that can be continued."""

from __future__ import annotations

import random
import signal
import sys

import pytest

from faults.checks import check, make_reference
from faults.injection import CRASHED, Ended
from faults.processes import send
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


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_a_random_moment_loses_nothing(worlds: Worlds, name: str, number: signal.Signals) -> None:
    problems = signal_at_random(worlds, name, number, seed=0)
    assert not problems, problems


def signal_at_random(worlds: Worlds, name: str, number: signal.Signals, seed: int) -> list[str]:
    """Send a signal to a command at a random moment, and return what is wrong afterwards."""
    verb = worlds.verbs()[name]
    reference = make_reference(worlds, verb)
    world = worlds.copy(verb)
    delay = random.Random(f"{name} {number} {seed}").uniform(0, 5)
    ended = send(verb.words, world, number, delay)
    problems = []
    if ended.code != 0 and number != signal.SIGKILL:
        is_sentence = ended.err.startswith("redx: ") and ended.err.count("\n") == 1
        if ended.code != 128 + number or not is_sentence:
            problems.append(f"after {delay:.2f} s: exit code {ended.code}, {ended.err}")
    with worlds.inside(world):
        stopped = Ended(CRASHED if ended.code else 0, ended.out, ended.err, [])
        return problems + check(world, verb, reference, worlds, stopped, "exit")
