"""A bounded queue before the one thread that uses the model; what waits together is answered together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from redx.errors import RedxError
from redx.serve.queries import Query

MAX_WAITING = 20_000  # inputs in the queue
MAX_REQUESTS = 4_000  # requests in the queue
MAX_BATCH = 1_024  # inputs that are answered at once
RETRY_AFTER = 1  # seconds after which a refused client may try again


class QueueFullError(Exception):
    """The queue is full; the client may try again later."""


@dataclass
class _Waiting:
    """A query, or a job that needs the model, with the future of its result."""

    work: Query | Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return len(self.work.inputs) if isinstance(self.work, Query) else 1


class Batcher:
    """Answers queries in one thread, all that wait at a time in batches of equal settings.

    Parameters
    ----------
    answer
        Takes queries of one setting to their answers.
    max_waiting, max_requests, max_batch
        Bounds on the inputs and requests that wait, and on the inputs of a batch.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Query]], Sequence[Any]],
        max_waiting: int = MAX_WAITING,
        max_requests: int = MAX_REQUESTS,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._answer = answer
        self.max_waiting, self.max_requests, self.max_batch = max_waiting, max_requests, max_batch
        self._queue: deque[_Waiting] = deque()
        self._inputs = 0
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        self._thread = threading.Thread(target=self._run, name="redx-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of inputs in the queue."""
        return self._inputs

    def submit(self, work: Query | Callable[[], Any]) -> Future[Any]:
        """Put a query or a job into the queue and return the future of its result.

        Raises
        ------
        QueueFullError
            Where too much waits already.
        """
        item = _Waiting(work)
        with self._changed:
            if self._closed:
                raise RedxError("The server is being stopped; start it again with `redx serve`.")
            if self._inputs + item.size > self.max_waiting or len(self._queue) >= self.max_requests:
                raise QueueFullError
            self._queue.append(item)
            self._inputs += item.size
            self._changed.notify()
        return item.result

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(30)

    def _run(self) -> None:
        while (items := self._take()) is not None:
            if not items:
                continue  # all of them were given up by their clients
            if isinstance(items[0].work, Query):
                self._answer_together(items)
            else:
                _finish(items[0], items[0].work)
            self.batches += 1

    def _take(self) -> list[_Waiting] | None:
        """Return the first item, with all queries of the same setting that fit into its batch; None at the end."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if not self._queue:
                return None
            taken, kept = [self._queue.popleft()], deque[_Waiting]()
            first, size = taken[0].work, taken[0].size
            while isinstance(first, Query) and self._queue:
                item = self._queue.popleft()
                same = isinstance(item.work, Query) and item.work.setting == first.setting
                if same and size + item.size <= self.max_batch:
                    taken.append(item)
                    size += item.size
                else:
                    kept.append(item)
            self._queue.extendleft(reversed(kept))
            self._inputs -= size
        return [item for item in taken if item.result.set_running_or_notify_cancel()]

    def _answer_together(self, items: list[_Waiting]) -> None:
        queries = [item.work for item in items if isinstance(item.work, Query)]
        try:
            answers = self._answer(queries)
        except Exception:
            for item in items:  # one of them is faulty: each for itself, so that only that one fails
                assert isinstance(item.work, Query)
                query = item.work
                _finish(item, lambda query=query: self._answer([query])[0])
            return
        for item, answer in zip(items, answers, strict=True):
            item.result.set_result(answer)


def _finish(item: _Waiting, work: Callable[[], Any]) -> None:
    try:
        item.result.set_result(work())
    except BaseException as error:
        item.result.set_exception(error)
