"""Send signals to commands at random moments, and check what they leave."""

from __future__ import annotations

import random
import signal

from faults.checks import check, make_reference
from faults.injection import CRASHED, Ended
from faults.processes import send
from faults.worlds import Worlds

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


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
