"""The thread that continues texts: requests join its batch and leave it between two tokens.

When the library was changed, the texts that run end with the adapters that they began with; those that wait begin
afterwards, with the adapters that there are then.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from redx.adapters.base import BaseLM
from redx.adapters.composed import ComposedLM
from redx.adapters.documents import tokenise
from redx.adapters.library import LibraryFile, read_library
from redx.adapters.options import GenerationOptions
from redx.adapters.running import NextToken, RunningBatch, RunningText
from redx.endpoint.errors import ApiError
from redx.endpoint.models import BASE, ROUTED, check_names, find_model
from redx.errors import RedxError
from redx.runs.transaction import read_version
from redx.serve.batching import QueueFullError

log = logging.getLogger("redx")
MAX_WAITING = 1_000  # texts in the queue
MAX_ROWS = 128  # rows that run together: one for the base and for each adapter of every text
MAX_CACHE = 4 * 2**30  # bytes of the keys and values of all rows
PROMPTS = 4  # that are read between two tokens of the texts that run
LONGEST = 64  # characters of a token at most, so that a prompt that is too long need not be tokenised

Event = NextToken | Exception


@dataclass(eq=False)
class Job:
    """A text to continue.

    Attributes
    ----------
    model
        What the request calls the model.
    prompt
        The text; or messages, which the chat template of the base turns into one.
    options
        How it is continued; without weights the model decides them.
    fill
        Continue to the end of the context, by at most as many tokens as the options say.
    alternatives
        How many of the most probable tokens are told.
    deliver
        Is given every token, in the engine's thread, or the error that ended the text.
    """

    model: str
    prompt: Callable[[BaseLM], str]
    options: GenerationOptions
    deliver: Callable[[Event], None]
    fill: bool = False
    alternatives: int = 0
    cancelled: bool = False
    ready: tuple[Tensor, GenerationOptions] | None = None  # tokens of the prompt, and the options of its model
    text: RunningText | None = None
    weights: dict[str, float] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def active(self) -> list[str]:
        """The adapters that run and have a weight."""
        rows = () if self.text is None else self.text.rows
        return [name for name in rows if name is not None and self.weights[name]]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, once it was read."""
        return 0 if self.text is None else len(self.text.prompt)


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
        self.max_rows, self.max_waiting = max_rows, max_waiting
        self.max_cells = max_cache // cell_bytes(base)  # rows times tokens
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
            job = self._waiting[0]
            try:
                job.ready = job.ready or self._prepare(job)
                room = self._has_room(job)
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

    def _has_room(self, job: Job) -> bool:
        """Return whether a text may join now; refuse one for which there never is room."""
        assert self._batch is not None
        assert job.ready is not None
        tokens, options = job.ready
        count = len(self.names)
        rows = 1 if job.model != ROUTED else 1 + min(count, count if options.top is None else options.top)
        width = len(tokens) + options.max_new_tokens
        if rows > self.max_rows or rows * width > self.max_cells:
            raise ApiError(
                400,
                f"{rows:,} rows of {width:,} tokens are more than this server runs at a time; lower max_tokens, or run "
                "fewer adapters by the field redx: {top: 1}.",
                "max_tokens",
            )
        running = [len(text.prompt) + text.options.max_new_tokens for text in self._batch.texts]
        together = self._batch.rows + rows
        return together <= self.max_rows and together * max((width, *running)) <= self.max_cells

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

    def _prepare(self, job: Job) -> tuple[Tensor, GenerationOptions]:
        """Return the tokens of a prompt and the options of its model, or refuse what cannot be continued."""
        options, tokens = self._options(job), self._tokens(job)
        if job.fill:
            room = min(options.max_new_tokens, self.base.context - len(tokens))
            options = replace(options, max_new_tokens=max(1, room))
        if len(tokens) + options.max_new_tokens > self.base.context:
            raise ApiError(
                400,
                f"The prompt has {len(tokens)} tokens, and with {options.max_new_tokens} new ones that is more "
                f"than the {self.base.context} that the model reads; shorten it, or lower max_tokens.",
                "messages" if job.fill else "prompt",
                "context_length_exceeded",
            )
        return tokens, options

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

    def _tokens(self, job: Job) -> Tensor:
        prompt = job.prompt(self.base)
        if len(prompt) > LONGEST * self.base.context:
            raise ApiError(
                400,
                f"The prompt has {len(prompt):,} characters, more than the {self.base.context} tokens that the model "
                "reads; shorten it.",
                "prompt",
                "context_length_exceeded",
            )
        if not prompt.strip():
            raise ApiError(400, "The prompt is empty; write something to continue.", "prompt")
        return torch.tensor(tokenise([prompt], self.base.tokenizer)[0])

    def _options(self, job: Job) -> GenerationOptions:
        """Return the options of a text with what its model means."""
        found = find_model(job.model, self.names)
        if found == ROUTED:
            return replace(job.options, top=self.top) if job.options.top is None else job.options
        if job.options.weights is not None or job.options.top is not None:
            raise ApiError(400, f"Weights and top belong to the model {ROUTED!r}; leave them out.", "redx")
        return replace(job.options, weights={} if found is None else {found: 1.0}, top=1)

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


def cell_bytes(base: BaseLM) -> int:
    """Return the bytes of the keys and values of one token of one row."""
    config = base.model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 4 * config.num_hidden_layers * heads * size


def _error_of(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def _unavailable(error: Exception) -> ApiError:
    sentence = str(error) if isinstance(error, RedxError) else f"The library cannot be read ({type(error).__name__})."
    return ApiError(503, sentence)
