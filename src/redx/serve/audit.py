"""The audit file: one JSON line for every answer, and replaying it to see whether a run still answers the same."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redx.data.tables import read_jsonl
from redx.errors import RedxError
from redx.io.reading import check_path, exists, open_file, parse_json
from redx.serve.answers import answer_queries
from redx.serve.loaded import LoadedRun, redx_version
from redx.serve.queries import Options, PredictBody, Query, Setting, SettingBody, check_inputs

KIND = "redx answer"  # marks a line of an audit file
TOLERANCE = 1e-4  # weights and radii may differ so much: rounding depends on what else is in a batch
BATCH = 512  # lines that are answered at once
WATCHED = ("closest", "confidence", "opposed")  # what `redx monitor` also needs of an answer
FIELDS = {"kind": str, "setting": dict, "options": dict, "base_hash": str, "expert_hashes": dict}


def input_hash(value: Any) -> str:
    """Return the SHA-256 hash of an input, as JSON without spaces."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


class AuditFile:
    """An audit file that is open for appending.

    Parameters
    ----------
    path
        The file; it is made where there is none, for its owner alone.
    hashed
        Write hashes instead of the inputs themselves.
    kind
        What the lines are marked with.

    Raises
    ------
    RedxError
        Where the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path, hashed: bool = False, kind: str = KIND) -> None:
        self.path, self.hashed, self.kind = path, hashed, kind
        check_path(path)
        if exists(path) and not _is_audit(path, kind):
            raise RedxError(f"{path} holds something else than answers of redx; choose another file for --audit.")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RedxError(f"Cannot write {path} ({error.strerror}); choose another file for --audit.") from error

    def write(self, loaded: LoadedRun, queries: Sequence[Query], answers: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Append one line for every answer; an answer that cannot be recorded must not be given.

        Raises
        ------
        RedxError
            Where the disk is full, for example.
        """
        self.append(
            [
                self._line(loaded, query, value, answer)
                for query, group in zip(queries, answers, strict=True)
                for value, answer in zip(query.inputs, group, strict=True)
            ]
        )

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Append one line for every record, all or none."""
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        content = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        try:
            start = os.fstat(self._file).st_size
            if os.write(self._file, content) < len(content):
                os.ftruncate(self._file, start)
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise RedxError(f"Cannot record the answer in {self.path} ({error.strerror}); free space.") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _line(self, loaded: LoadedRun, query: Query, value: Any, answer: dict[str, Any]) -> dict[str, Any]:
        options = query.options
        weights = options.weights
        pairs = [entry for entry in weights or () if isinstance(entry, tuple)]
        named = dict(pairs) if pairs else weights
        asked = {"weights": named, "abstain": options.abstain, "steps": options.steps, "monitor": options.monitor}
        shown = {"input_sha256": input_hash(value)} if self.hashed else {"input": value}
        return {
            "kind": KIND,
            "id": answer.get("id"),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **shown,
            **summarise(answer),
            **{name: answer[name] for name in WATCHED if name in answer},
            "setting": query.setting.to_dict(),
            "options": {name: option for name, option in asked.items() if option not in (None, True)},
            "run": str(loaded.folder),
            "seed": loaded.seed,
            "base_hash": loaded.hashes["base"],
            "expert_hashes": loaded.hashes["experts"],
            "promise_hash": loaded.promise_hash,
            "redx": redx_version(),
        }


def summarise(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an answer that an audit file keeps."""
    names = ("answer", "abstained", "base", "weights", "radius", "cutoff", "program")
    kept = {name: answer[name] for name in names if name in answer}
    if "steps" in answer:
        kept["steps"] = [{"question": step["question"], **summarise(step)} for step in answer["steps"]]
    return kept


def _is_audit(path: Path, kind: str) -> bool:
    with open_file(path, 2**40) as (file, size):
        first = file.readline(2**20)
    try:
        return not size or parse_json(first.decode()).get("kind") == kind
    except (ValueError, AttributeError, RecursionError):
        return False


@dataclass(frozen=True)
class Difference:
    """A line of an audit file that a run does not answer in the same way."""

    line: int
    field: str
    before: Any
    now: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"line": self.line, "field": self.field, "before": self.before, "now": self.now}


@dataclass(frozen=True)
class Replay:
    """What replaying an audit file showed.

    Attributes
    ----------
    lines
        The number of lines.
    hashed
        How many of them hold only a hash of the input, so that they cannot be answered again.
    differences
        The lines that differ.
    changed
        What of the run has changed since: `base`, or names of experts.
    """

    lines: int
    hashed: int
    differences: list[Difference]
    changed: list[str]

    @property
    def same(self) -> bool:
        """Whether every line that could be answered again has the same answer."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        shown = [difference.to_dict() for difference in self.differences]
        return {"lines": self.lines, "hashed": self.hashed, "changed": self.changed, "differences": shown}


def replay_file(path: Path, run: Path, seed: int | None = None) -> Replay:
    """Answer the lines of an audit file again and return which of them differ.

    Parameters
    ----------
    path
        The audit file.
    run
        The run folder.
    seed
        Which seed of the run; by default the one that the first line names.

    Raises
    ------
    RedxError
        Where the file is no audit file, or belongs to another kind of run.
    """
    records = read_jsonl(path, FIELDS, _check_record)
    loaded = LoadedRun.read(run, records[0].get("seed") if seed is None else seed)
    groups: dict[tuple[Setting, Options], list[int]] = {}
    for index, record in enumerate(records):
        if "input" in record:
            groups.setdefault((read_setting(record), read_options(record)), []).append(index)
    differences: list[Difference] = []
    for (setting, options), indices in groups.items():
        for start in range(0, len(indices), BATCH):
            rows = indices[start : start + BATCH]
            differences += _replay_rows(loaded, setting, options, {row: records[row] for row in rows})
    differences.sort(key=lambda difference: difference.line)
    hashed = sum("input" not in record for record in records)
    return Replay(len(records), hashed, differences, _changed(loaded, records))


def _replay_rows(
    loaded: LoadedRun, setting: Setting, options: Options, records: dict[int, dict[str, Any]]
) -> list[Difference]:
    """Return the differences of lines that have the same setting and options; lines count from 1."""
    inputs = [record["input"] for record in records.values()]
    try:
        check_inputs(inputs, loaded.kind, loaded.model.info.shape)
        (answers,) = answer_queries(loaded, [Query(inputs, setting, options)])
    except RedxError as error:
        if len(records) > 1:  # only the lines at fault differ
            return [
                difference
                for row, record in records.items()
                for difference in _replay_rows(loaded, setting, options, {row: record})
            ]
        (row,) = records
        return [Difference(row + 1, "error", None, str(error))]
    differences = []
    for (row, record), answer in zip(records.items(), answers, strict=True):
        for name, now in summarise(answer).items():
            if not _agree(record.get(name), now):
                differences.append(Difference(row + 1, name, record.get(name), now))
                break  # one field a line is enough
    return differences


def _agree(before: Any, now: Any) -> bool:
    """Return whether two values are equal; numbers up to rounding."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_agree(before[name], now[name]) for name in now)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_agree, before, now))
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return before == now


def _check_record(record: dict[str, Any]) -> None:
    if record["kind"] != KIND:
        raise ValueError("it is no answer of `redx serve --audit`")
    try:
        read_setting(record)
        read_options(record)
    except (ValidationError, TypeError) as error:
        raise ValueError("its setting is damaged") from error


def read_setting(record: dict[str, Any]) -> Setting:
    """Return the setting that a line was answered in."""
    return Setting.from_body(SettingBody.model_validate(record["setting"]))


def read_options(record: dict[str, Any]) -> Options:
    """Return the options of the request that a line answers."""
    return Query.without_checks(PredictBody.model_validate({"inputs": [], **record["options"]})).options


def _changed(loaded: LoadedRun, records: list[dict[str, Any]]) -> list[str]:
    """Return what of the run differs from what the lines were answered by."""
    changed = {"base" for record in records if record["base_hash"] != loaded.hashes["base"]}
    now = loaded.hashes["experts"]
    for before in {json.dumps(record["expert_hashes"], sort_keys=True) for record in records}:
        then = parse_json(before)
        changed |= {f"expert {name}" for name in {*then, *now} if then.get(name) != now.get(name)}
    return sorted(changed)
