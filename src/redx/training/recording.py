"""Watch training: a recorder gets loss, learning rate and validation score of every learner; without one, nothing runs.

A recorder only reads. Losses are read after they are computed, and scores draw no random numbers, so a run that is
recorded gives the same bits as one that is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor

MAX_POINTS = 200  # of one curve


class Recorder(Protocol):
    """What receives the figures of training, one stage after the other."""

    def start(self, stage: str, learners: Sequence[str]) -> None:
        """Begin a stage, anew if an earlier attempt was interrupted; one name per learner, empty for a lone one."""

    def record(self, learner: int, epoch: int, figures: Mapping[str, float]) -> None:
        """Take the figures of one learner after an epoch, by name."""

    def finish(self) -> None:
        """End the stage."""


_RECORDER: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Let all training inside the block report to a recorder; None for none."""
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


class Watch:
    """Collects the losses of one stage by learner and hands them to a recorder at the end of epochs."""

    def __init__(self, recorder: Recorder, stage: str, names: Sequence[str], epochs: int) -> None:
        self.recorder, self.stride = recorder, math.ceil(epochs / MAX_POINTS)
        self.sums, self.counts = [0.0] * len(names), [0] * len(names)
        recorder.start(stage, names)

    @staticmethod
    def begin(stage: str, names: Sequence[str] | None, learners: int, epochs: int) -> Watch | None:
        """Return the watch of a stage; None where nothing is recorded."""
        recorder = _RECORDER.get()
        if recorder is None:
            return None
        lone = [""] if learners == 1 else [str(number) for number in range(learners)]
        return Watch(recorder, stage, names or lone, epochs)

    def add(self, losses: Tensor) -> None:
        """Take the share of a micro-batch in the loss of one step, (K,)."""
        for learner, loss in enumerate(losses.detach().tolist()):
            self.sums[learner] += loss

    def step(self) -> None:
        """Count one step of every learner."""
        self.counts = [count + 1 for count in self.counts]

    def epoch(self, learner: int, number: int, rate: float, score: Callable[[], float] | None) -> None:
        """Hand over what one epoch of a learner gave.

        Parameters
        ----------
        learner, number
            Which learner, and how many epochs it has had.
        rate
            Its learning rate at the last step.
        score
            Returns its score on validation, which is larger where it is better; None where there is none.
        """
        loss = self.sums[learner] / max(1, self.counts[learner])
        self.sums[learner], self.counts[learner] = 0.0, 0
        if number % self.stride and number > 1:
            return
        figures = {"train loss": loss, "learning rate": rate}
        if score is not None:
            figures["validation score"] = score()
        self.recorder.record(learner, number, figures)

    def finish(self) -> None:
        """End the stage."""
        self.recorder.finish()
