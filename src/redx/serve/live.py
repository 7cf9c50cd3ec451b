"""The monitor of a server while it answers: every answer counts at once, its label when somebody sends it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from redx.errors import RedxError
from redx.serve.loaded import LoadedRun
from redx.serve.queries import LabelBody, Query
from redx.serve.watch import Watch

KEPT = 100_000  # answers whose labels can be sent
NEEDED = ("answer", "closest", "abstained", "base", "radius", "opposed")  # of an answer, to judge it by its label


class LiveMonitor:
    """The monitor of one state of a served run; one thread at a time may change it.

    Parameters
    ----------
    loaded
        The run.
    delta
        The probability that any test ever raises a false alarm.
    kept
        How many of the last answers wait for a label.
    """

    def __init__(self, loaded: LoadedRun, delta: float, kept: int = KEPT) -> None:
        self.watch, self.kept, self.version = Watch(loaded, delta), kept, loaded.version
        self._answers: OrderedDict[str, dict[str, Any] | None] = OrderedDict()  # None: it has a label

    def count(self, queries: Sequence[Query], answers: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Count answers that were given, those that the promise is about."""
        for query, group in zip(queries, answers, strict=True):
            if not self.watch.is_promised(query.setting, query.options):
                continue
            for answer in group:
                confidence = self.watch.confidence_of(answer)
                if confidence is None:
                    continue
                self.watch.monitor.add_confidence(confidence)
                self._answers[answer["id"]] = {name: answer[name] for name in NEEDED if name in answer}
                if len(self._answers) > self.kept:
                    self._answers.popitem(last=False)

    def label(self, labels: Sequence[LabelBody]) -> int:
        """Count the labels of earlier answers, all of them or none, and return how many these are.

        Raises
        ------
        RedxError
            Where one cannot be used: an id is unknown or has a label, or the label is no class.
        """
        judged: dict[str, tuple[bool, str | None]] = {}
        for number, one in enumerate(labels, 1):
            answer = self._answers.get(one.id)
            try:
                if one.id in judged or (answer is None and one.id in self._answers):
                    raise ValueError(f"has the id {one.id!r:.60}, which has a label already")
                if answer is None:
                    raise ValueError(f"has the id {one.id!r:.60}, which none of the last {self.kept:,} answers has")
                domain = self.watch.check_label(str(one.label), one.domain)
            except ValueError as error:
                raise RedxError(f"Label {number} {error}; send none of them again but correct it.") from error
            judged[one.id] = self.watch.is_harmed(answer, str(one.label), domain), domain
        for identity, (harmed, domain) in judged.items():
            self.watch.monitor.add_label(harmed, domain)
            self._answers[identity] = None
        return len(judged)

    def describe(self) -> dict[str, Any]:
        """Return the promise, the state of every test and the verdict as plain values."""
        return self.watch.describe() | {"version": self.version}
