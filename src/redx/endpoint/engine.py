"""The thread that continues texts: requests join its batch and leave it between two tokens.

When the library was changed, the texts that run end with the adapters that they began with; those that wait begin
afterwards, with the adapters that there are then.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from redx.adapters.base import BaseLM
from redx.adapters.composed import ComposedLM
from redx.adapters.library import LibraryFile, read_library
from redx.adapters.running import NextToken, RunningBatch, RunningText
from redx.endpoint.errors import ApiError
from redx.endpoint.job import Job, prepare
from redx.endpoint.models import BASE, ROUTED, check_names, find_model
from redx.endpoint.room import MAX_CACHE, MAX_ROWS, Room, cell_bytes
from redx.errors import RedxError
from redx.runs.transaction import read_version
from redx.serve.batching import QueueFullError

log = logging.getLogger("redx")
MAX_WAITING = 1_000  # texts in the queue
PROMPTS = 4  # that are read between two tokens of the texts that run


class Engine:
    """Continues texts in one thread.

    Parameters
    ----------
    run
        The folder with library.json.
    base
        The model of the library.
    router
        As for `ComposedLM.from_pretrained`.
    top
        How many adapters the model `redx` runs where a request does not say; None for all, which gives radii.
    max_rows, max_waiting, max_cache
        Bounds on the rows that run together, on the texts that wait, and on the bytes of keys and values.
    """

    def __init__(
        self,
        run: Path,
        base: BaseLM,
        router: str | None = None,
        top: int | None = None,
        max_rows: int = MAX_ROWS,
        max_waiting: int = MAX_WAITING,
        max_cache: int = MAX_CACHE,
    ) -> None:
        if top is not None and top < 1:
            raise RedxError(f"The number of adapters to run is at least 1, not {top}; change --top.")
        self.run, self.base, self.router, self.top = run, base, router, top
        self.max_waiting, self.room = max_waiting, Room(max_rows, max_cache // cell_bytes(base))
        self.tokens: Counter[str] = Counter()  # by model
        self._open()
        self._waiting: deque[Job] = deque()
        self._running: dict[RunningText, Job] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="redx-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of texts in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of texts that are being continued."""
        return len(self._running)

    def submit(self, job: Job) -> None:
        """Put a text into the queue.

        Raises
        ------
        QueueFullError
            Where too many wait already.
        """
        with self._changed:
            if self._closed:
                raise ApiError(503, "The server is being stopped; start it again with `redx serve`.")
            if len(self._waiting) >= self.max_waiting:
                raise QueueFullError
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """End a text early; its tokens are not delivered any more."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread, with all texts."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(30)

    # --- in the thread of the engine

    def _open(self) -> None:
        self._batch: RunningBatch | None = None
        self.version = read_version(self.run)
        library = read_library(self.run)
        check_names(library.names)
        self.names, self.library = library.names, library
        self._batch = RunningBatch(ComposedLM.from_library(self.run, self.base, self.router))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._closed):
                    self._changed.wait()
                if self._closed:
                    break
            self._drop_cancelled()
            self._admit()
            self._step()
        for job in (*self._running.values(), *self._waiting):
            job.deliver(ApiError(503, "The server is being stopped; send the request again later."))
        if self._batch is not None:
            self._batch.composed.stack.close()

    def _drop_cancelled(self) -> None:
        with self._changed:
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
        gone = [text for text, job in self._running.items() if job.cancelled]
        if gone and self._batch is not None:
            self._batch.drop(gone)
        for text in gone:
            del self._running[text]

    def _admit(self) -> None:
        """Let waiting texts join, as long as there is room and the library is that of the running ones."""
        read = 0
        while self._waiting and (read < PROMPTS or not self._running):
            try:
                if not self._is_current():
                    return
            except Exception as error:  # the library cannot be read: nobody can be answered until it can
                with self._changed:
                    lost, self._waiting = self._waiting, deque()
                for job in lost:
                    job.deliver(_unavailable(error))
                return
            job, batch = self._waiting[0], self._batch
            assert batch is not None  # the library was read
            try:
                job.ready = job.ready or prepare(job, self.base, self.names, self.top)
                room = self.room.admits(batch, job, len(self.names))
            except Exception as error:
                self._fail(job, error)
                continue
            if not room:
                return
            self._start(job)
            read += 1

    def _fail(self, job: Job, error: Exception) -> None:
        """Take a waiting text out of the queue, for it cannot begin."""
        if not isinstance(error, (RedxError, ApiError)):
            log.exception("a text could not begin")
        with self._changed:
            self._waiting.remove(job)
        job.deliver(error)

    def _is_current(self) -> bool:
        """Read the library again if it was changed; return whether waiting texts may join now."""
        if self._batch is not None and read_version(self.run) == self.version:
            return True
        library: LibraryFile = read_library(self.run)
        self.names = library.names  # at once: who names an adapter that is gone need not wait
        for job in list(self._waiting):
            if job.model not in (ROUTED, BASE, *library.names):
                with self._changed:
                    self._waiting.remove(job)
                job.deliver(_error_of(lambda job=job: find_model(job.model, library.names)))
        if self._running:
            return False
        if self._batch is not None:
            self._batch.composed.stack.close()
        self._open()
        log.info("%s was changed and has been read again", self.run)
        return bool(self._waiting)

    def _start(self, job: Job) -> None:
        """Let the first text of the queue join."""
        assert self._batch is not None
        assert job.ready is not None
        try:
            text, first = self._batch.start(*job.ready, job.alternatives)
        except Exception as error:
            return self._fail(job, error)
        with self._changed:
            self._waiting.remove(job)
        job.text = text
        names = self._batch.composed.names
        job.weights = dict(zip(names, text.weights.tolist(), strict=True))
        job.hashes = {entry.name: entry.hash for entry in self.library.adapters if entry.name in job.active}
        if first.stopped is None:
            self._running[text] = job
        self._deliver(job, first)

    def _step(self) -> None:
        if self._batch is None:
            return
        try:
            taken = self._batch.step()
        except Exception as error:  # such as a lack of memory: the cache is lost, and with it the texts
            log.exception("the batch failed")
            lost, self._running = self._running, {}
            self._batch = RunningBatch(self._batch.composed)
            for job in lost.values():
                job.deliver(error)
            return
        for text, token in taken:
            job = self._running[text]
            if token.stopped is not None:
                del self._running[text]
            self._deliver(job, token)

    def _deliver(self, job: Job, token: NextToken) -> None:
        self.tokens[job.model] += 1
        if not job.cancelled:
            job.deliver(token)


def _error_of(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def _unavailable(error: Exception) -> ApiError:
    sentence = str(error) if isinstance(error, RedxError) else f"The library cannot be read ({type(error).__name__})."
    return ApiError(503, sentence)
