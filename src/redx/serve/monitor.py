"""Does the promise of a run still hold, by its audit file and by labels that became known later?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redx.data.tables import Record, name_value, read_jsonl, read_table
from redx.errors import RedxError
from redx.io.reading import is_file
from redx.serve.audit import KIND, read_options, read_setting
from redx.serve.loaded import LoadedRun
from redx.serve.watch import Watch

FIELDS = {"kind": str, "setting": dict, "options": dict, "base_hash": str, "expert_hashes": dict}
DELTA = 0.05


@dataclass(frozen=True)
class MonitorReport:
    """What the audit file and the labels of a run say about its promise.

    Attributes
    ----------
    lines
        The number of lines of the audit file.
    left_out
        How many of them the promise is not about: answered with another rule, risk or set of experts, by several steps,
        or kept out of the monitor by the request.
    labels, labels_left_out
        The number of labels, and how many of them are of such lines.
    watch
        The promise with its tests.
    """

    lines: int
    left_out: int
    labels: int
    labels_left_out: int
    watch: Watch

    @property
    def alarm(self) -> bool:
        """Whether any test raised an alarm."""
        return self.watch.monitor.alarm

    @property
    def verdict(self) -> str:
        """One sentence: whether there is an alarm, and why."""
        return self.watch.monitor.verdict()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        names = ("lines", "left_out", "labels", "labels_left_out")
        return {name: getattr(self, name) for name in names} | self.watch.describe()


def monitor_file(
    run: Path, audit: Path, labels: Path | None = None, delta: float = DELTA, seed: int | None = None
) -> MonitorReport:
    """Test whether the promise of a run still holds on the answers of an audit file.

    Parameters
    ----------
    run
        The run folder.
    audit
        The file that `redx serve --audit` wrote.
    labels
        A table (JSONL, CSV, Parquet) with the columns `id`, of an answer, and `label`, the true one; where labels name
        no domain also `domain`. Its rows stand in the order in which labels became known. None: only the confidences
        are tested.
    delta
        The probability that any test ever raises a false alarm.
    seed
        Which seed of the run; by default the one that the first line names.

    Raises
    ------
    RedxError
        Where a file cannot be used, or the lines are of another model or calibration.
    """
    before: list[datetime] = []
    known: dict[str, Record] = {}

    def check(record: Record) -> None:
        _check_line(record)
        if record["id"] in known:
            raise ValueError(f"has the id {record['id']!r:.40}, as a line before it has")
        known[record["id"]] = record
        time = _time(record)
        if before and time < before[-1]:
            raise ValueError("is older than the line before it")
        before[:] = [time]

    records = read_jsonl(audit, FIELDS, check)
    number = records[0].get("seed") if seed is None else seed
    loaded = LoadedRun.read(run, number if isinstance(number, int) else None)
    watch = Watch(loaded, delta)
    for line, record in enumerate(records, 1):
        _check_model(audit, line, record, loaded)
    counted = _count_confidences(audit, records, watch)
    rows = [] if labels is None else read_table(_existing(labels), _label_check(audit, known, watch))
    for row in rows:
        if (identity := str(row["id"])) in counted:
            label = name_value(row, "label")
            domain = watch.check_label(label, _given_domain(row))
            watch.monitor.add_label(watch.is_harmed(known[identity], label, domain), domain)
    used = sum(str(row["id"]) in counted for row in rows)
    return MonitorReport(len(records), len(records) - len(counted), len(rows), len(rows) - used, watch)


def _check_line(record: Record) -> None:
    if record["kind"] != KIND:
        raise ValueError("is no answer of `redx serve --audit`")
    if not isinstance(record.get("id"), str) or not isinstance(record.get("promise_hash"), str | None):
        raise ValueError("has no id; it was written by an older redx")
    try:
        read_setting(record)
        read_options(record)
    except (ValidationError, TypeError, RedxError) as error:
        raise ValueError("has a damaged setting") from error
    if "steps" in record or record.get("confidence") is None:
        return
    radius = record.get("radius")
    if not isinstance(radius, int | float) or not {"answer", "base"} <= record.keys():
        raise ValueError("has no answer with a radius")
    if record.get("abstained") and "closest" not in record:
        raise ValueError("does not say what it would have answered")
    if not isinstance(record.get("opposed", []), list):
        raise ValueError("names no experts in the field 'opposed'")


def _time(record: Record) -> datetime:
    try:
        time = datetime.fromisoformat(str(record.get("time")))
    except ValueError as error:
        raise ValueError("has no time") from error
    if time.tzinfo is None:
        raise ValueError("has a time without a zone")
    return time


def _check_model(audit: Path, line: int, record: Record, loaded: LoadedRun) -> None:
    """Refuse a line that another model or another calibration answered."""
    experts = loaded.hashes["experts"]
    if record["base_hash"] != loaded.hashes["base"] or record["expert_hashes"] != experts:
        what = "another base" if record["base_hash"] != loaded.hashes["base"] else "other experts"
    elif record["promise_hash"] != loaded.promise_hash:
        what = "another calibration"
    else:
        return
    raise RedxError(
        f"Line {line} of {audit} was answered with {what} than {loaded.folder} has now; give the lines since its last "
        "change alone."
    )


def _count_confidences(audit: Path, records: list[Record], watch: Watch) -> frozenset[str]:
    """Count the lines that the promise is about, and return their ids."""
    counted = set()
    for line, record in enumerate(records, 1):
        if not watch.is_promised(read_setting(record), read_options(record)):
            continue
        try:
            value = watch.confidence_of(record)
        except ValueError as error:
            raise RedxError(f"Line {line} of {audit} {error}; restore the file from a copy.") from error
        if value is None:
            continue
        if watch.budget == "routing" and "opposed" not in record:
            raise RedxError(f"Line {line} of {audit} does not say which experts oppose the base; restore the file.")
        watch.monitor.add_confidence(value)
        counted.add(record["id"])
    return frozenset(counted)


def _existing(path: Path) -> Path:
    if not is_file(path):
        raise RedxError(f"There is no file {path}; give a table of ids and labels with --labels FILE.")
    return path


def _label_check(audit: Path, known: dict[str, Record], watch: Watch) -> Callable[[Record], None]:
    """Return the check of a row of labels."""
    seen: set[str] = set()

    def check(row: Record) -> None:
        identity = name_value(row, "id")
        if identity not in known:
            raise ValueError(f"has the id {identity!r:.60}, which no line of {audit} has")
        if identity in seen:
            raise ValueError(f"has the id {identity!r:.60} again")
        seen.add(identity)
        watch.check_label(name_value(row, "label"), _given_domain(row))
        row["id"] = identity

    return check


def _given_domain(row: Record) -> str | None:
    return name_value(row, "domain") if row.get("domain") not in (None, "") else None
