"""Plans on the local engine: calls run in order, results go back to the plan, and stages are recorded at once."""

from __future__ import annotations

import logging
import socket
import sys
from typing import Any

import pytest

from redx.engine import Call, LocalEngine, Plan, open_engine, ray_engine
from redx.engine.calls import perform_elsewhere
from redx.errors import RedxError


def add(one: int, other: int) -> int:
    return one + other


def fail() -> None:
    raise RedxError("This fails; do something else.")


def plan(start: int, events: list[str]) -> Plan[int]:
    (four,) = yield [Call(add, (start, 2), finished=lambda _: events.append("first"))]
    yield []
    five, six = yield [Call(add, (four, number), finished=lambda _: events.append("more")) for number in (1, 2)]
    return five * six


def test_a_plan_receives_the_results_of_its_calls() -> None:
    events: list[str] = []
    assert LocalEngine().follow([plan(2, events), plan(0, [])]) == [30, 12]
    assert events == ["first", "more", "more"]


def test_an_error_ends_the_plan_after_what_was_done_before_it() -> None:
    events: list[str] = []

    def failing() -> Plan[None]:
        yield [Call(add, (1, 1), finished=lambda _: events.append("done")), Call(fail)]
        events.append("never")

    with pytest.raises(RedxError, match="This fails"):
        LocalEngine().follow([failing()])
    assert events == ["done"]


def test_a_worker_reports_its_seconds_and_what_it_logged() -> None:
    def work(value: int) -> int:
        logging.getLogger("redx").info("value %d", value)
        return value

    result, report = perform_elsewhere(work, [3])
    assert result == 3
    assert report.messages == ("value 3",)
    assert report.seconds >= 0
    assert not [handler for handler in logging.getLogger("redx").handlers if type(handler).__name__ == "_Collector"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "spark"}, "There is no engine 'spark'; choose one of local, ray."),
        ({"address": "auto"}, "add --engine ray or leave out --address"),
        ({"name": "ray", "address": "127.0.0.1:1"}, "No Ray cluster answers at 127.0.0.1:1 (Connection refused)"),
        ({"name": "ray", "address": "ray://here:10001"}, "run the command on the cluster with `ray job submit`"),
        ({"name": "ray", "address": "nowhere"}, "is no address of a Ray cluster; write auto or HOST:PORT"),
    ],
    ids=["unknown", "address", "refused", "client", "no-address"],
)
def test_an_engine_that_cannot_be_used_is_refused_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RedxError) as refusal, open_engine(**arguments):
        pass
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_port_of_something_else_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RedxError, match=f"No Ray cluster answers at {address} .*timed out"):
            ray_engine.check_address(address)


def test_the_engine_ray_needs_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RedxError, match=r"pip install 'redx\[cluster\]'"), open_engine("ray"):
        pass


def test_without_a_gpu_the_device_cuda_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(RedxError, match="no CUDA device"), open_engine("local", cuda=True):
        pass
