"""The conclusion of a run: from the parts of its seeds to results.jsonl, summary.json and the report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from redx.composition.evaluation import Banks
from redx.composition.listing import with_shares
from redx.composition.parts import predicted_classes
from redx.composition.risk import RiskControl
from redx.composition.summary import Row, read_summary, summarise
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.files import write_bytes, write_json
from redx.io.manifest import is_expected
from redx.io.reading import guarded, parse_json, read_json, read_text
from redx.model.model import Model
from redx.models.calibration import read_calibration
from redx.report.content import Study
from redx.report.page import check_packages
from redx.runs.costs import count_parameters
from redx.runs.facts import compare_answers, describe_experts
from redx.runs.folder import DataFile
from redx.runs.integrity import STATES, state_hash
from redx.runs.parts import StoredParts, read_parts
from redx.runs.promises import quarantine, with_promises
from redx.runs.reports import new_report, read_study, write_report
from redx.runs.stages import evaluate_parts
from redx.runs.transaction import Transaction

log = logging.getLogger("redx")

OUTDATED = b"The experts, the router or the risk have changed; `redx report RUN` writes the report of the run anew.\n"
LEFT_OUT = "left out, since they were made with other experts or another risk; repeating the run makes them anew"


@dataclass(frozen=True)
class SeedResults:
    """What the summary reads of one seed.

    Attributes
    ----------
    parts
        The parts of the test split.
    rows
        Its rows of results.jsonl.
    calibration
        Its risk control; None where it has none.
    """

    parts: StoredParts
    rows: list[Row]
    calibration: RiskControl | None

    @property
    def state(self) -> str:
        """A hash of all that the figures follow from."""
        digest = hashlib.blake2b(repr(self.parts.domains).encode(), digest_size=16)
        for bank_id, parts in sorted(self.parts.banks.items()):
            by_example = [value for value in parts.cutoffs or () if isinstance(value, torch.Tensor)]
            digest.update(f"{bank_id} {'by domain' if by_example else parts.cutoffs}".encode())
            for tensor in (*parts.tensors().values(), *by_example):
                digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()


def describe_figures(config: RunConfig, results: Mapping[int, SeedResults], digests: list[str]) -> dict[str, Any]:
    """Return the keys of summary.json that follow from the parts: rules, quarantine, router, paired and modularity.

    Parameters
    ----------
    config
        Settings of the run.
    results
        What is known of every seed.
    digests
        Hashes of the test splits of the seeds.
    """
    units = min(one.parts.units for one in results.values())
    rules = with_shares(summarise([row for one in results.values() for row in one.rows], config.main, units), config)
    banks = [one.parts.banks for one in results.values()]
    controlled = config.controlled_bank
    kept = [
        (one.calibration, one.parts.banks[controlled])
        for one in results.values()
        if controlled is not None and one.calibration is not None
    ]
    return {
        "rules": with_promises(rules, config, kept, units),
        "quarantine": quarantine({seed: one.calibration for seed, one in results.items() if one.calibration}),
        "router": {"accuracy": fmean(map(_router_accuracy, banks))},
        **compare_answers(config, {seed: one.parts for seed, one in results.items()}, digests),
    }


def states(results: Mapping[int, SeedResults]) -> dict[str, str]:
    """Return the state of every seed, by which a study knows whether it is of these experts."""
    return {str(seed): one.state for seed, one in results.items()}


def format_rows(results: Mapping[int, SeedResults]) -> bytes:
    """Return the content of results.jsonl."""
    return "".join(json.dumps(row) + "\n" for one in results.values() for row in one.rows).encode()


def renew(
    transaction: Transaction,
    config: RunConfig,
    seed: int,
    parts: StoredParts,
    calibration: RiskControl | None,
    model: Model | None = None,
) -> None:
    """Compute results, summary and report anew for one seed that is being changed, as a part of that change.

    A run that was never finished has no summary, and gets none. The study of the task is left out where it was made
    with other experts.

    Parameters
    ----------
    transaction
        The change of the seed's folder.
    config, seed
        Settings of the run, and the seed.
    parts, calibration
        The parts of its test split and its risk control after the change.
    model
        Its model after the change, if experts or router change.
    """
    run = transaction.folder.parent
    if not is_expected(run / "summary.json"):
        return
    old = read_summary(run / "summary.json")
    if seed not in old["seeds"]:
        return
    kept = _kept_rows(run) if len(old["seeds"]) > 1 else {}
    results = {}
    for number in old["seeds"]:
        stored = parts if number == seed else read_parts(run, number)
        rows = kept.get(number) if number != seed else None
        control = calibration if number == seed else read_calibration(run / f"seed-{number}")
        results[number] = SeedResults(stored, rows or evaluate_parts(config, number, stored), control)
    with guarded(run / "summary.json", "lacks figures, or has some of the wrong kind", "repeat the run"):
        hashes = read_json(run / "data.json", DataFile, misfit="does not say how the data were split").sha256
        digests = [hashes[str(number)]["test"] for number in results]
        summary = {name: value for name, value in old.items() if name not in ("paired", "modularity")}
        summary |= describe_figures(config, results, digests)
        if model is not None and seed == old["seeds"][0]:
            summary["experts"] = describe_experts(model)
            summary["cost"] = old["cost"] | {"parameters": count_parameters(model)}
        kept_states = old.get(STATES, {})
        summary[STATES] = kept_states | {str(seed): state_hash(transaction.folder, transaction.entries())}
        study = _study_of(run, results)
        summary["study"] = study.facts if study else {"left_out": LEFT_OUT} if is_expected(run / "study.json") else {}
        _write(transaction, config, summary, study, results)


def _write(
    transaction: Transaction,
    config: RunConfig,
    summary: dict[str, Any],
    study: Study | None,
    results: Mapping[int, SeedResults],
) -> None:
    write_bytes(transaction.new_of_run("results.jsonl"), format_rows(results))
    write_json(transaction.new_of_run("summary.json"), summary)
    try:
        check_packages()
    except RedxError as error:
        log.warning("%s `redx report RUN` then writes the report.", error)
        for name in ("report.html", "report.md"):
            write_bytes(transaction.new_of_run(name), OUTDATED)
        return
    write_report(new_report(transaction.new_of_run), config, summary, study)


def _study_of(run: Path, results: Mapping[int, SeedResults]) -> Study | None:
    """Return the study of a run if it was made with these experts."""
    study = read_study(run)
    return study if study is not None and study.state == states(results) else None


def _kept_rows(run: Path) -> dict[int, list[Row]]:
    """Return the rows of results.jsonl by seed; none where they cannot be read."""
    rows: dict[int, list[Row]] = {}
    path = run / "results.jsonl"
    with contextlib.suppress(RedxError), guarded(path, "does not hold results", "repeat the run"):
        for line in read_text(path).splitlines():
            row = parse_json(line)
            rows.setdefault(row["seed"], []).append(row)
    return rows


def _router_accuracy(banks: Banks) -> float:
    """Return how often the largest gate is that of the example's domain."""
    parts = max(banks.values(), key=lambda parts: parts.experts)
    return float((predicted_classes(parts.gates) == parts.domains).double().mean())


def with_cutoffs(stored: StoredParts, calibration: RiskControl, compared: Mapping[BankId, RiskControl]) -> StoredParts:
    """Return parts with the cut-offs of another calibration, and those of banks that are compared with it."""
    banks = {
        bank_id: parts
        if parts.confidences is None
        else replace(parts, cutoffs=compared.get(bank_id, calibration).cutoffs_for(parts.base, parts.named))
        for bank_id, parts in stored.banks.items()
    }
    return replace(stored, banks=banks)
