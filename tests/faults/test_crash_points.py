"""A command that is stopped at any change of a file leaves the state before or after, and can be repeated.

A sample of the points; `make faults` tries all of them.
"""

from __future__ import annotations

import pytest

from faults.checks import break_at, make_reference
from faults.injection import MODES
from faults.worlds import Worlds

NAMES = (
    "run",
    "run again",
    "experts add",
    "experts remove",
    "experts replace",
    "experts train",
    "router train",
    "calibrate",
    "adapters calibrate",
    "adapters add",
    "adapters remove",
    "adapters save",
    "experts kit",
    "sign",
    "export",
    "shrink",
    "report",
    "data",
    "cache clear",
    "fetch mnist",
)
POINTS = 3  # of each verb


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_command_can_be_stopped_anywhere(worlds: Worlds, name: str) -> None:
    verb = worlds.verbs()[name]
    reference = make_reference(worlds, verb)
    operations, modes = reference.operations, list(MODES)
    offset = NAMES.index(name)  # so that the verbs are stopped at different kinds of operations
    for number in range(POINTS):
        at = (number * len(operations) // POINTS + offset) % len(operations)
        mode = modes[(number + offset) % len(modes)]
        problems = break_at(worlds, verb, reference, at, mode)
        assert not problems, (name, mode, at, operations[at], problems)
