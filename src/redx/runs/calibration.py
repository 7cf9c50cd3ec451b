"""Recalibrate a finished run for another risk, and measure the promise on its test split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redx.composition.parts import Parts
from redx.composition.risk import RiskControl, harm_figures
from redx.composition.rules import get_rule
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.models.calibration import read_calibration, read_compared, write_calibration
from redx.runs.conclusion import renew, with_cutoffs
from redx.runs.folder import choose_seed, lock_run, read_config
from redx.runs.parts import read_parts
from redx.runs.promises import describe_quarantine
from redx.runs.transaction import consistently, edit

RULE = "red"  # the rule whose figures are shown


def calibrate_run(
    run: Path,
    risk: float | None = None,
    confidence: float | None = None,
    seed: int | None = None,
    by: str | None = None,
    small: str | None = None,
    budget: str | None = None,
) -> dict[int, dict[str, Any]]:
    """Set the risk that a finished run keeps; nothing is trained, and no model is loaded.

    Parameters
    ----------
    run
        The run folder.
    risk
        Bound on the harm of the worst router; by default 0.01, or the smallest that the calibration examples support.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    seed
        Which seed of the run; all of them by default.
    by, small
        Whether the bound holds over all examples (`all`) or in each domain (`domain`), and what happens with domains
        that have too few examples (`merge`, `silent`); None: as before.
    budget
        Whether the risk bounds all harm (`harm`), or the harm that routers do (`routing`); None: as before.

    Returns
    -------
    dict
        By seed, what it promises now and what its test split shows, as `risk_figures` returns it.
    """
    config = read_config(run)
    seeds = config.seeds if seed is None else (choose_seed(run, seed)[1],)
    results: dict[int, dict[str, Any]] = {}
    with lock_run(run, config):
        promise = risk, confidence, by, small, budget
        changes = {number: _read(run, number).at(*promise) for number in seeds}  # all are possible, or none
        for number, calibration in changes.items():
            others = read_compared(run / f"seed-{number}").items()
            compared = {bank_id: other.at(*promise) for bank_id, other in others}
            keep_control(run, config, number, calibration, compared)
            results[number] = risk_figures(run, number) or {}
    return results


def keep_control(
    run: Path, config: RunConfig, seed: int, control: RiskControl, compared: Mapping[BankId, RiskControl]
) -> None:
    """Write the risk control of a seed, and those of banks that are compared, with all figures that follow.

    Parameters
    ----------
    run, config, seed
        The run folder, which is locked, its settings, and the seed.
    control, compared
        What is kept from now on.
    """
    with edit(run / f"seed-{seed}") as transaction:
        files = transaction.new("risk.json"), transaction.new("thresholds.safetensors")
        write_calibration(*files, control, compared)
        parts = with_cutoffs(read_parts(run, seed), control, compared)
        renew(transaction, config, seed, parts, control)


def risk_figures(run: Path, seed: int | None = None) -> dict[str, Any] | None:
    """Return what a seed promises and what its test split shows; None where no bank has risk control.

    Parameters
    ----------
    run
        The run folder.
    seed
        Which seed of the run; the first by default.
    """
    config, number = choose_seed(run, seed)
    bank_id = config.controlled_bank
    if bank_id is None:
        return None

    def read() -> dict[str, Any]:
        return describe_risk(_read(run, number), read_parts(run, number, bank_id).banks[bank_id])

    return consistently(run, run / f"seed-{number}", read)


def describe_risk(calibration: RiskControl, parts: Parts) -> dict[str, Any]:
    """Return the promise of a calibration and the figures of `red` on these examples.

    Parameters
    ----------
    calibration
        The calibration of the experts.
    parts
        The record of test examples with confidences and cut-offs.

    Returns
    -------
    dict
        risk, confidence, by, budget, cutoff (None: infinite, or one for each domain), calibration (number of examples,
        or of groups of them), owners (domains whose owners computed the thresholds), the figures of `harm_figures`,
        `quarantine`, as `describe_quarantine` returns it, and by domain `domains`, as `RiskControl.by_domain` returns
        them.
    """
    return {
        "risk": calibration.risk,
        "confidence": calibration.confidence,
        "by": calibration.by,
        "budget": calibration.budget,
        "cutoff": calibration.cutoff_in("simplex"),
        "calibration": calibration.units,
        "owners": list(calibration.owners),
        **harm_figures(get_rule(RULE), parts),
        "quarantine": describe_quarantine(calibration),
        **({"domains": calibration.by_domain(parts, RULE)} if calibration.by == "domain" else {}),
    }


def quarantine_of(run: Path, seed: int | None = None) -> dict[str, dict[str, Any]]:
    """Return what `describe_quarantine` returns for the seeds of a run; of all seeds, where none is chosen."""
    config = read_config(run)
    if config.controlled_bank is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for number in config.seeds if seed is None else (choose_seed(run, seed)[1],):
        calibration = read_calibration(run / f"seed-{number}")
        for name, trial in describe_quarantine(calibration).items() if calibration is not None else ():
            known = found.get(name)
            if known is None or _weight(trial) > _weight(known):
                found[name] = trial | {"seed": number}
    return found


def _weight(trial: dict[str, Any]) -> tuple[bool, float]:
    return trial["quarantined"], -min(trial["p"], trial["p_claims"])


def owners_of(run: Path, seed: int | None = None) -> list[str]:
    """Return the domains whose owners calibrated a seed of a run, or any of its seeds, where none is chosen."""
    config = read_config(run)
    numbers = config.seeds if seed is None else (choose_seed(run, seed)[1],)
    controls = [read_calibration(run / f"seed-{number}") for number in numbers if config.controlled_bank]
    return sorted({name for control in controls if control is not None for name in control.owners})


def _read(run: Path, seed: int) -> RiskControl:
    calibration = read_calibration(run / f"seed-{seed}")
    if calibration is None:
        raise RedxError(f"{run} has no experts under risk control; repeat its `redx run` with this version of redx.")
    return calibration
