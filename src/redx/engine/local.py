"""The local engine: every call runs in this process, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redx.engine.calls import Call, Plan


class LocalEngine:
    """Follows plans one after the other; a handle is the value itself."""

    runs_at_once = 1

    def share(self, value: Any) -> Any:
        return value

    def follow(self, plans: Iterable[Plan[Any]]) -> list[Any]:
        return [_follow(plan) for plan in plans]

    def check_folders(self, folders: Iterable[Path]) -> None:
        pass


def _follow(plan: Plan[Any]) -> Any:
    try:
        calls = next(plan)
        while True:
            calls = plan.send([_perform(call) for call in calls])
    except StopIteration as stop:
        return stop.value
    finally:
        plan.close()


def _perform(call: Call) -> Any:
    start = time.perf_counter()
    result = call.function(*call.arguments)
    call.finished(time.perf_counter() - start)
    return result
