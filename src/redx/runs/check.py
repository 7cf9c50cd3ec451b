"""The gate for pull requests: exact confidence bounds of a run, compared with floors and with another run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from redx.composition.evaluation import certify, match_banks
from redx.composition.parts import predicted_classes
from redx.composition.rules import RuleId, get_rule
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.reading import is_file, read_json
from redx.models.calibration import read_calibration
from redx.runs.check_bounds import lower_bound, mean_count, upper_bound, worse_p_value
from redx.runs.check_output import Check, CheckResult, show_bound, show_number, show_p_value
from redx.runs.check_settings import CONFIDENCE, RULE, Floors, check_confidence
from redx.runs.folder import DataFile, read_config
from redx.runs.parts import read_parts

# --- what is counted


@dataclass(frozen=True)
class SeedAnswers:
    """The answers of one rule on the test split of one seed.

    Attributes
    ----------
    labels
        True classes, (N,).
    right
        Whether the composed answer is right, (N,).
    certified
        Whether it is right under any router, (N,).
    harmed
        Whether the base is right and some router makes the composed answer wrong, (N,).
    domains
        Index of the domain in `names`, (N,).
    names
        Names of the domains.
    """

    labels: Tensor
    right: Tensor
    certified: Tensor
    harmed: Tensor
    domains: Tensor
    names: tuple[str, ...]


def read_answers(run: Path, config: RunConfig, seed: int, rule: str) -> SeedAnswers:
    """Return the answers of one rule on the test split of one seed.

    Parameters
    ----------
    run, config, seed
        The run folder, its settings, and one of its seeds.
    rule
        A rule, which reads the main bank of its form, or `rule/bank`.
    """
    name, bank = RuleId.parse(rule)
    bank = bank or ("" if name == "base" else config.main.get(get_rule(name).form, ""))
    stored = read_parts(run, seed)
    entry = next(iter(match_banks(stored.banks, [str(RuleId(name, bank))])), None)
    if entry is None:
        raise RedxError(f"{run} has no bank that the rule {name!r} reads; choose another with --rule.")
    matched, _, parts = entry
    answers = certify(matched, parts)
    labels, domains = parts.true_labels(), parts.true_domains()
    right = answers.predicted == labels
    certified = right & (answers.radius >= 1)
    harmed = (predicted_classes(parts.base) == labels) & ~certified
    names = stored.domains or tuple(f"domain {index}" for index in range(int(domains.max()) + 1))
    return SeedAnswers(labels, right, certified, harmed, domains, names)


# --- checks


def check_run(
    run: str | os.PathLike[str],
    floors: Floors,
    against: str | os.PathLike[str] | None = None,
    rule: str = RULE,
    confidence: float = CONFIDENCE,
) -> CheckResult:
    """Return whether a run keeps all floors, and whether it is significantly worse than another run.

    All figures are those of the test split, as `redx evaluate` and `redx certify` print them, and means over the seeds.
    Test examples repeat over seeds, so a bound uses the number of test examples of one seed and the mean share as a
    whole count, rounded down for lower bounds and up for upper bounds. Every bound holds with probability `confidence`
    by itself. The lowest of the bounds of all domains is a bound for the worst domain at the same confidence.

    Against another run of the same test split, the exact McNemar test compares the examples on which only one of them
    is right (means over the seeds that both have, losses rounded down and gains up).

    Parameters
    ----------
    run
        The run folder.
    floors
        What the run must reach.
    against
        Folder of the run that it must not be worse than.
    rule
        The rule that is checked, or `rule/bank`.
    confidence
        Probability with which every single bound holds, and 1 minus the level of the test.

    Returns
    -------
    CheckResult
        The checks; its `ok` says whether all hold.

    Raises
    ------
    RedxError
        If nothing is demanded, if a run cannot be read, or if the two runs have different test splits.

    Examples
    --------
    >>> check_run("runs/toy", Floors(min_accuracy=0.9)).ok  # doctest: +SKIP
    True
    """
    check_confidence(confidence)
    if not floors.given() and against is None:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in vars(floors))
        raise RedxError(
            f"There is nothing to check; give --against RUN or a floor, as an option or in redx.toml: {names}."
        )
    folder = Path(run)
    config = _read_run(folder)
    answers = {seed: read_answers(folder, config, seed, rule) for seed in config.seeds}
    every = list(answers.values())
    checks: list[Check] = []
    for name, floor in floors.given().items():
        if name == "max_risk":
            checks.append(_check_risk(folder, config, rule, floor))
        elif name == "min_domain":
            checks.append(_check_domains(every, floor, confidence))
        else:
            counts = [_count(_MEASURES[name](one)) for one in every]
            checks.append(_check_share(name.replace("_", "-"), counts, floor, confidence))
    if against is not None:
        checks += _check_against(folder, answers, Path(against), rule, confidence)
    examples = min(len(one.labels) for one in every)
    other = "" if against is None else str(against)
    return CheckResult(str(run), rule, other, confidence, tuple(config.seeds), examples, tuple(checks))


_MEASURES: dict[str, Callable[[SeedAnswers], Tensor]] = {
    "min_accuracy": lambda answers: answers.right,
    "min_certified": lambda answers: answers.certified,
    "max_harm": lambda answers: answers.harmed,
}


def _read_run(folder: Path) -> RunConfig:
    if is_file(folder):
        raise RedxError(f"{folder} is a file; give the folder of a finished run, as made by `redx run`.")
    return read_config(folder)


def _count(which: Tensor) -> tuple[int, int]:
    return int(which.sum()), len(which)


def _check_share(
    name: str, counts: Sequence[tuple[int, int]], floor: float, confidence: float, domain: str = ""
) -> Check:
    """Return the check of a share, given the successes and examples of every seed."""
    most = name.startswith("max")
    mean, count, examples = mean_count(counts, up=most)
    find, best = (upper_bound, 0) if most else (lower_bound, examples)
    bound, limit = find(count, examples, confidence), find(best, examples, confidence)
    if (bound <= floor) if most else (bound >= floor):
        return Check(name, floor, mean, bound, True, domain=domain)
    side, relation = ("upper", "above") if most else ("lower", "below")
    reason = f"the {side} bound {show_bound(name, bound, floor)} is {relation} {show_number(floor)}"
    if (limit > floor) if most else (limit < floor):
        amount = f"{'less' if most else 'more'} than {show_bound(name, limit, floor)}"
        reason = f"{reason}, and {examples:,} test examples can show no {amount}"
    return Check(name, floor, mean, bound, False, reason, domain)


def _check_domains(answers: Sequence[SeedAnswers], floor: float, confidence: float) -> Check:
    """Return the check of the domain with the lowest bound; a domain counts in the seeds whose test split has it."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for one in answers:
        for index, name in enumerate(one.names):
            rows = one.domains == index
            if rows.any():
                counts.setdefault(name, []).append(_count(one.right[rows]))
    checks = [_check_share("min-domain", of_seeds, floor, confidence, name) for name, of_seeds in counts.items()]
    return min(checks, key=lambda check: check.bound or 0.0)


def _check_risk(folder: Path, config: RunConfig, name: str, floor: float) -> Check:
    """Return the check of the risk that every seed was calibrated for, of which the largest counts."""
    rule, bank = get_rule(RuleId.parse(name).rule), RuleId.parse(name).bank
    bank_id = BankId(rule.form, bank) if bank else config.main_bank(rule.form)
    if rule.adversary and bank_id != config.controlled_bank:
        return Check("max-risk", floor, None, None, False, f"the rule {name} is not under risk control")
    calibrations = [read_calibration(folder / f"seed-{seed}") for seed in config.seeds]
    risks = [calibration.risk for calibration in calibrations if calibration]
    if len(risks) < len(calibrations):
        return Check("max-risk", floor, None, None, False, "the run is not calibrated")
    worst = max(risks)
    reason = (
        "" if worst <= floor else f"the run is calibrated for the risk {show_number(worst)}, above {show_number(floor)}"
    )
    return Check("max-risk", floor, worst, worst, not reason, reason)


def _check_against(
    folder: Path, answers: dict[int, SeedAnswers], against: Path, rule: str, confidence: float
) -> list[Check]:
    """Return the checks of clean and certified accuracy against another run of the same test split."""
    config = _read_run(against)
    seeds = [seed for seed in answers if seed in config.seeds]
    if not seeds:
        raise RedxError(f"{folder} and {against} have no seed in common; run one of them again with --seed.")
    hashes, other_hashes = _test_hashes(folder), _test_hashes(against)
    pairs = []
    for seed in seeds:
        other = read_answers(against, config, seed, rule)
        same = str(seed) in hashes and hashes[str(seed)] == other_hashes.get(str(seed))
        if not same or not torch.equal(answers[seed].labels, other.labels):
            raise RedxError(f"{folder} and {against} have different test splits (seed {seed}), so they do not compare.")
        pairs.append((answers[seed], other))
    measures = {"against-accuracy": _MEASURES["min_accuracy"], "against-certified": _MEASURES["min_certified"]}
    checks = []
    for name, measure in measures.items():
        check = _check_losses(name, [(measure(new), measure(old)) for new, old in pairs], round(1 - confidence, 12))
        checks.append(replace(check, seeds=tuple(seeds)))
    return checks


def _check_losses(name: str, pairs: Sequence[tuple[Tensor, Tensor]], level: float) -> Check:
    """Return the check of losses against gains, given what is right in the new and in the old run for every seed."""
    gained = Fraction(sum(int((new & ~old).sum()) for new, old in pairs), len(pairs))
    lost = Fraction(sum(int((old & ~new).sum()) for new, old in pairs), len(pairs))
    difference = sum(float(new.double().mean() - old.double().mean()) for new, old in pairs) / len(pairs)
    p_value = worse_p_value(math.ceil(gained), math.floor(lost))
    reason = ""
    if p_value < level:
        changes = f"{show_number(float(lost))} test examples lost and {show_number(float(gained))} gained"
        reason = f"{changes}, {show_p_value(p_value, level)}"
    return Check(name, level, difference, p_value, not reason, reason, gained=float(gained), lost=float(lost))


def _test_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of the test split of every seed."""
    file: DataFile = read_json(folder / "data.json", DataFile, misfit="does not hold the hashes of data")
    return {seed: splits["test"] for seed, splits in file.sha256.items() if "test" in splits}
