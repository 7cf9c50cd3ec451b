"""The conclusion of a run: from the parts of its seeds to results.jsonl, summary.json and the report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from redx.composition.evaluation import Banks, predict
from redx.composition.listing import with_shares
from redx.composition.metrics import exact_interval
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.risk import RiskControl, group_confidence, group_interval, harm_figures, smallest_risk
from redx.composition.rules import Rule, RuleId, get_rule
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
from redx.runs.reports import new_report, read_study, write_report
from redx.runs.stages import evaluate_parts
from redx.runs.transaction import Transaction

log = logging.getLogger("redx")

PRICED = "red"  # the rule whose accuracy at other risks is in the summary
LARGER_RISKS = (0.02, 0.05, 0.1)
NO_CUTOFFS = Cutoffs(-math.inf, -math.inf)  # an expert in quarantine, or outside its own classes, stays silent
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
    """Return the keys of summary.json that follow from the parts: `rules`, `router`, `paired` and `modularity`.

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
    return {
        "rules": _with_risk(rules, config, list(results.values()), units),
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


def _with_risk(rules: dict[str, Any], config: RunConfig, results: list[SeedResults], units: int) -> dict[str, Any]:
    """Return the section `rules` of the summary with the promise and the harm of every rule under risk control."""
    kept = [one.calibration for one in results if one.calibration is not None]
    bank_id = config.controlled_bank
    if bank_id is None or not kept:
        return rules
    for name, figures in rules.items():
        rule, bank = get_rule(RuleId.parse(name).rule), RuleId.parse(name).bank
        if rule.form != bank_id.form or rule.adversary is None or (bank or config.main.get(rule.form)) != bank_id.name:
            continue
        cutoffs = [calibration.cutoff_in(rule.adversary) for calibration in kept]
        grouped = kept[0].groups is not None
        figures["risk"] = {
            "risk": max(calibration.risk for calibration in kept),
            "confidence": kept[0].confidence,
            "score": kept[0].score,
            "by": kept[0].by,
            "budget": kept[0].budget,
            "cutoff": None if None in cutoffs else fmean(float(value or 0) for value in cutoffs),
            "calibration": min(calibration.units for calibration in kept),
            "harm": _with_interval(figures["worst_harm"], units, grouped),
            "active": fmean(_active(one.parts.banks[bank_id], rule.adversary) for one in results),
        }
        if name == PRICED:
            figures["risk"]["price"] = _price(rule, bank_id, results)
            if kept[0].budget == "routing":
                routing = fmean(
                    harm_figures(rule, one.parts.banks[bank_id])["routing_harm"]
                    for one in results
                    if one.calibration is not None
                )
                figures["risk"]["routing_harm"] = _with_interval(routing, units, grouped)
    return rules


def _with_interval(share: float, units: int, grouped: bool) -> dict[str, float]:
    """Return a share of the test examples, or of groups, with its 95 % interval."""
    low, high = group_interval(share * units, units) if grouped else exact_interval(round(share * units), units)
    return {"mean": share, "low": low, "high": high}


def _price(rule: Rule, bank_id: BankId, results: list[SeedResults]) -> dict[str, Any]:
    """Return the accuracy of a rule at larger risks, with the budget `routing`, and where no cut-off excludes anything.

    All are means over the seeds, on the test split; `routing` is None where the domains of the calibration examples are
    not known, and the present accuracy where the budget is this one already.
    """
    kept = [(one.parts.banks[bank_id], one.calibration) for one in results if one.calibration is not None]

    def accuracy(risk: float | None = None, budget: str | None = None) -> float:
        """Return the accuracy at another promise; without a risk that of all experts, cut-off by nothing."""
        shares = []
        for parts, control in kept:
            cutoffs = NO_CUTOFFS
            if risk is not None:
                promise = (control.confidence, control.by, control.small, budget or control.budget)
                cutoffs = control.at(risk, *promise).cutoffs_for(parts.base)
            answers = predict(rule, replace(parts, cutoffs=cutoffs))
            shares.append(float((answers == parts.true_labels()).double().mean()))
        return fmean(shares)

    now = max(control.risk for _, control in kept)
    least = max(_smallest_risk(control) for _, control in kept)
    known = all(control.mistakes is not None for _, control in kept)
    return {
        "risks": {f"{risk:g}": accuracy(risk) for risk in LARGER_RISKS if risk > now and risk >= least},
        "routing": accuracy(now, "routing") if known else None,
        "uncut": accuracy(),
    }


def _smallest_risk(control: RiskControl) -> float:
    """Return the smallest risk that the calibration examples support."""
    confidence = control.confidence if control.groups is None else group_confidence(control.confidence)
    return smallest_risk(control.units, confidence)


def _active(parts: Parts, region: str) -> float:
    """Return the share of examples and experts whose confidence exceeds the cut-off."""
    return float(parts.active(region).double().mean())


def _router_accuracy(banks: Banks) -> float:
    """Return how often the largest gate is that of the example's domain."""
    parts = max(banks.values(), key=lambda parts: parts.experts)
    return float((predicted_classes(parts.gates) == parts.domains).double().mean())


def with_cutoffs(stored: StoredParts, calibration: RiskControl, compared: Mapping[BankId, RiskControl]) -> StoredParts:
    """Return parts with the cut-offs of another calibration, and those of banks that are compared with it."""
    banks = {
        bank_id: parts
        if parts.confidences is None
        else replace(parts, cutoffs=compared.get(bank_id, calibration).cutoffs_for(parts.base))
        for bank_id, parts in stored.banks.items()
    }
    return replace(stored, banks=banks)
