"""The served run: answers queries in the model's thread, and reads the run again when it was changed."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from redx.composition.risk import smallest_risk
from redx.errors import RedxError
from redx.runs.calibration import risk_figures
from redx.runs.transaction import read_version
from redx.serve.answers import answer_queries
from redx.serve.audit import AuditFile
from redx.serve.batching import Batcher
from redx.serve.examples import ExampleSet, Recent
from redx.serve.live import LiveMonitor
from redx.serve.loaded import LoadedRun
from redx.serve.monitor import DELTA
from redx.serve.price import price_of_safety
from redx.serve.queries import LabelBody, Query, Setting

log = logging.getLogger("redx")
Value = TypeVar("Value")
ID_BYTES = 12  # of the random id of an answer, which nobody can guess


class Service:
    """A run that is served.

    Parameters
    ----------
    folder, seed
        The run folder, and which of its seeds; the first by default.
    audit
        Where answers are recorded; None for nowhere.
    """

    def __init__(self, folder: Path, seed: int | None = None, audit: AuditFile | None = None) -> None:
        self.folder, self.seed, self.audit = folder, seed, audit
        self.answers: Counter[str] = Counter()  # by rule
        self.abstained = 0
        self._use(LoadedRun.read(folder, seed))
        self.batcher = Batcher(self._answer)

    def _use(self, loaded: LoadedRun) -> None:
        self.loaded, self.examples, self._prices = loaded, ExampleSet(loaded), Recent()
        self.live: LiveMonitor | None = None  # made when it is first needed
        self._can_watch = loaded.promise_hash is not None

    def close(self) -> None:
        """End the model's thread, and close the audit file."""
        self.batcher.close()
        if self.audit is not None:
            self.audit.close()

    # --- in the model's thread

    def _answer(self, queries: Sequence[Query]) -> list[list[dict[str, Any]]]:
        answers = self._fresh(lambda: answer_queries(self.loaded, queries))
        for answer in (answer for group in answers for answer in group):
            answer["id"] = secrets.token_hex(ID_BYTES)
        if self.audit is not None:
            self.audit.write(self.loaded, queries, answers)
        self._count(queries, answers)
        return answers

    def _count(self, queries: Sequence[Query], answers: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Count answers that were given, for the figures and for the monitor."""
        for query, group in zip(queries, answers, strict=True):
            self.answers[query.setting.rule or self.loaded.model.rule] += len(group)
            self.abstained += sum(bool(answer.get("abstained")) for answer in group)
        if (live := self._monitor()) is not None:
            live.count(queries, answers)

    def _monitor(self) -> LiveMonitor | None:
        """Return the monitor of the present state of the run; None where the run promises nothing."""
        if self.live is None and self._can_watch:
            try:
                self.live = LiveMonitor(self.loaded, DELTA)
            except RedxError as error:  # answers are given all the same
                log.warning("the promise is not monitored: %s", error)
                self._can_watch = False
        return self.live

    def watch(self) -> dict[str, Any]:
        """Return the state of the monitor."""

        def compute() -> dict[str, Any]:
            live = self._monitor()
            return {"monitored": live is not None} | (live.describe() if live is not None else {})

        return self._fresh(compute)

    def label(self, labels: Sequence[LabelBody]) -> dict[str, Any]:
        """Count the true labels of earlier answers, all or none."""
        self._read_again_if_changed()  # once: labels of answers of another state are refused
        live = self._monitor()
        if live is None:
            raise RedxError("This run promises nothing that labels could contradict; keep the labels.")
        return {"counted": live.label(labels)} | self.watch()

    def _fresh(self, compute: Callable[[], Value]) -> Value:
        """Return what `compute` returns for the present state of the run; it is called again where that changes."""
        self._read_again_if_changed()
        try:
            return compute()
        except RedxError:
            if not self._read_again_if_changed():
                raise
            return compute()

    def _read_again_if_changed(self) -> bool:
        loaded = self.loaded
        if read_version(loaded.seed_folder) == loaded.version:
            return False
        self._use(LoadedRun.read(self.folder, self.seed))
        log.info("%s was changed and has been read again", self.folder)
        return True

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of the model."""
        return self._fresh(lambda: self.loaded.describe())

    def price(self, setting: Setting) -> Callable[[], dict[str, Any]]:
        """Return a function that computes the figures of every risk; it needs no model, so any thread may call it."""

        def prepare() -> Callable[[], dict[str, Any]]:
            answers, prices, loaded = self.examples.on_choices(setting), self._prices, self.loaded
            control = answers.control
            if control is None:
                raise RedxError(f"The rule {setting.rule or loaded.model.rule!r} has no risk control; choose red.")
            promised = loaded.calibration(Setting())
            about = {"risk": promised.risk, "smallest": smallest_risk(promised.units, promised.confidence)}

            def compute() -> dict[str, Any]:
                now = {"now": risk_figures(self.folder, loaded.seed)}
                return price_of_safety(answers.rule, answers.parts, control) | about | now

            return lambda: prices.get(setting, compute)

        return self._fresh(prepare)

    def diff(self, setting: Setting) -> dict[str, Any]:
        """Return what switching experts off changes on the choice examples."""
        return self._fresh(lambda: self.examples.diff(setting))

    def table(
        self, setting: Setting, filter: str, domain: str | None, sort: str, descending: bool, offset: int, limit: int
    ) -> dict[str, Any]:
        """Return a part of the table of test examples."""

        def compute() -> dict[str, Any]:
            table = self.examples.table(setting)
            rows = table.rows(filter, domain, sort, descending)
            return self._describe_rows(setting, rows[offset : offset + limit].tolist()) | {"total": len(rows)}

        return self._fresh(compute)

    def rows(self, setting: Setting, rows: list[int]) -> dict[str, Any]:
        """Return single test examples."""

        def compute() -> dict[str, Any]:
            count = len(self.examples.table(setting).labels)
            if any(not 0 <= row < count for row in rows):
                raise RedxError(f"There are test examples 0 to {count - 1}; choose one of them.")
            return self._describe_rows(setting, rows) | {"total": len(rows)}

        return self._fresh(compute)

    def _describe_rows(self, setting: Setting, rows: list[int]) -> dict[str, Any]:
        table, label = self.examples.table(setting), self.loaded.model.label
        inputs = self.examples.inputs(rows)
        entries = [
            {
                "row": row,
                "input": value,
                "label": label(int(table.labels[row])),
                "domain": table.domain_names[int(table.domains[row])],
                "answer": label(int(table.predicted[row])),
                "base": label(int(table.base[row])),
                "radius": float(table.radius[row]),
            }
            for row, value in zip(rows, inputs, strict=True)
        ]
        counts = {
            name: len(table.rows(name, None, "row", False)) for name in ("all", "fragile", "helped", "harmed", "wrong")
        }
        return {
            "rows": entries,
            "problem": self.examples.problem,
            "counts": counts,
            "domains": list(table.domain_names),
        }
