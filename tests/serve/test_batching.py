"""The queue before the model: bounded, in batches of equal settings, and a fault concerns one request only."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from redx.errors import RedxError
from redx.serve.batching import Batcher, QueueFullError
from redx.serve.queries import Query, Setting


class Model:
    """Counts the batches; waits at the first one until it is released, so that others queue up behind it."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.started, self.released = threading.Event(), threading.Event()

    def answer(self, queries: Sequence[Query]) -> list[list[object]]:
        self.started.set()
        assert self.released.wait(30)
        self.batches.append([value for query in queries for value in query.inputs])
        if any("bad" in query.inputs for query in queries):
            raise RedxError("bad input")
        return [query.inputs for query in queries]


def test_what_waits_together_is_answered_together() -> None:
    model = Model()
    batcher = Batcher(model.answer, max_batch=4)
    first = batcher.submit(Query(["first"]))
    model.started.wait(30)
    futures = [batcher.submit(Query([n], Setting("red" if n % 2 else "sum"))) for n in range(10)]
    assert batcher.waiting == 10
    model.released.set()
    assert [future.result(30) for future in futures] == [[n] for n in range(10)]
    assert first.result(30) == ["first"]
    assert model.batches == [["first"], [0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]
    assert batcher.waiting == 0
    batcher.close()


def test_a_fault_concerns_one_request_only() -> None:
    model = Model()
    batcher = Batcher(model.answer)
    batcher.submit(Query(["first"]))
    model.started.wait(30)
    good, bad, other = (batcher.submit(Query([word])) for word in ("good", "bad", "other"))
    model.released.set()
    assert (good.result(30), other.result(30)) == (["good"], ["other"])
    with pytest.raises(RedxError, match="bad input"):
        bad.result(30)
    batcher.close()


def test_a_full_queue_refuses() -> None:
    model = Model()
    batcher = Batcher(model.answer, max_waiting=3, max_requests=2)
    batcher.submit(Query(["first"]))
    model.started.wait(30)
    with pytest.raises(QueueFullError):
        batcher.submit(Query([1, 2, 3, 4]))
    kept = [batcher.submit(Query([n])) for n in range(2)]
    with pytest.raises(QueueFullError):
        batcher.submit(Query([5]))
    kept[0].cancel()  # its client has gone
    model.released.set()
    assert kept[1].result(30) == [1]
    assert batcher.submit(lambda: 7).result(30) == 7
    batcher.close()
    assert [0] not in model.batches
    with pytest.raises(RedxError, match="stopped"):
        batcher.submit(Query([6]))
