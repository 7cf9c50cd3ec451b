"""`redx check`, the gate for pull requests: what is demanded of a run, exact bounds, and what holds.

Floors come from options and from a redx.toml in the run folder or beside it. Every floor is compared with an exact
confidence bound, and another run of the same test split by an exact test.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeGuard

import torch
from scipy import stats
from scipy.optimize import brentq
from scipy.special import rel_entr
from torch import Tensor

from redx.composition.evaluation import certify, match_banks
from redx.composition.metrics import group_means, upper_bound
from redx.composition.parts import predicted_classes
from redx.composition.rules import RuleId, get_rule
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.folders import check_links
from redx.io.reading import exists, is_file, read_json, read_toml
from redx.models.calibration import read_calibration
from redx.runs.check_output import Check, CheckResult, show_bound, show_number, show_p_value
from redx.runs.folder import DataFile, read_config
from redx.runs.parts import read_parts

FILE, SECTION = "redx.toml", "check"
RULE, CONFIDENCE = "red", 0.95
SMALLEST = 1e-300  # expectation that is told from 0

# --- what is demanded


@dataclass(frozen=True)
class Floors:
    """What a run must reach, as shares from 0 to 1; None demands nothing.

    Attributes
    ----------
    min_accuracy
        Smallest lower bound of clean accuracy.
    min_certified
        Smallest lower bound of the share of examples that are right under any router.
    max_harm
        Largest upper bound of the share of examples that the base gets right and some router gets wrong; in the worst
        domain where the run keeps its risk by domain.
    max_risk
        Largest risk that the run may be calibrated for.
    min_domain
        Smallest lower bound of clean accuracy in the worst domain.

    Raises
    ------
    RedxError
        If a floor is no number from 0 to 1.

    Examples
    --------
    >>> Floors(min_accuracy=0.9).given()
    {'min_accuracy': 0.9}
    >>> Floors(min_accuracy=90)
    Traceback (most recent call last):
    redx.errors.RedxError: The floor min-accuracy is a number from 0 to 1, not 90; write 0.9 for 90 %.
    """

    min_accuracy: float | None = None
    min_certified: float | None = None
    max_harm: float | None = None
    max_risk: float | None = None
    min_domain: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if not _is_number(value) or not 0 <= value <= 1:
                example = value / 100 if _is_number(value) and 1 < value <= 100 else 0.01 if name[:3] == "max" else 0.9
                raise RedxError(
                    f"The floor {name.replace('_', '-')} is a number from 0 to 1, not {_short(value)}; "
                    f"write {example:g} for {100 * example:g} %."
                )

    def given(self) -> dict[str, float]:
        """Return the floors that demand something, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class CheckSettings:
    """All settings of a check.

    Attributes
    ----------
    floors
        What the run must reach.
    against
        The run that it must not be worse than; None for no comparison.
    rule
        The rule that is checked, or `rule/bank`.
    confidence
        Probability with which every single bound holds.
    file
        The redx.toml that was read; None if there is none.
    """

    floors: Floors
    against: Path | None = None
    rule: str = RULE
    confidence: float = CONFIDENCE
    file: Path | None = None


FLOORS = tuple(field.name for field in fields(Floors))
NAMES = (*FLOORS, "against", "rule", "confidence")


def read_settings(run: Path, **options: Any) -> CheckSettings:
    """Return the settings of a check: those of redx.toml, and options, which win.

    The file is RUN/redx.toml, or else redx.toml in the folder that holds the run. Its section `[check]` has the names
    of the options with underscores; `against` is relative to the file.

    Parameters
    ----------
    run
        The run folder.
    **options
        The fields of `Floors`, and `against`, `rule` and `confidence`; None leaves what the file says.

    Raises
    ------
    RedxError
        If the file is no TOML or has unknown names, or if a setting cannot be used.
    """
    check_links(run)
    parent = run.resolve().parent if run.name in ("", "..") else run.parent
    file = next((path for path in (run / FILE, parent / FILE) if exists(path)), None)
    settings = _read_section(file) if file else {}
    settings |= {name: value for name, value in options.items() if value is not None}
    floors = Floors(**{name: settings.get(name) for name in FLOORS})
    against = settings.get("against")
    rule, confidence = settings.get("rule", RULE), check_confidence(settings.get("confidence", CONFIDENCE))
    return CheckSettings(floors, Path(against) if against else None, rule, confidence, file)


def _read_section(file: Path) -> dict[str, Any]:
    """Return the section [check] of a file; `against` becomes a path from here."""
    content = read_toml(file)
    for name, value in content.items():
        if not isinstance(value, dict):
            raise RedxError(f"{file} has {_short(name)} outside of a section; write [{SECTION}] in a line above it.")
        if name != SECTION:
            raise RedxError(f"{file}: redx reads no section [{_short(name)[1:-1]}]; write [{SECTION}].")
    section: dict[str, Any] = content.get(SECTION, {})
    for name, value in section.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
            raise RedxError(f"{file}: there is no setting {_short(name)}; the nearest is '{near[0]}'.")
        if name in ("against", "rule") and not isinstance(value, str):
            raise RedxError(f"{file} has {name} = {_short(value)}, which is no text; write it in quotes.")
    try:
        Floors(**{name: value for name, value in section.items() if name in FLOORS})
        check_confidence(section.get("confidence", CONFIDENCE))
    except RedxError as error:
        raise RedxError(f"{file}: {error}") from error
    if "against" in section:
        return section | {"against": file.parent / section["against"]}
    return section


def check_confidence(confidence: float) -> float:
    """Return a confidence unchanged, or raise `RedxError` unless it lies between 0 and 1."""
    if not _is_number(confidence) or not 0 < confidence < 1:
        raise RedxError(f"A confidence lies between 0 and 1, not {_short(confidence)}; choose one such as 0.95.")
    return confidence


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    """Return a value as it is shown in a sentence; Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**15:
        return "so large a number"
    return f"{value:g}" if _is_number(value) else repr(value)[:60]


# --- exact bounds of shares, as functions of counts


def lower_bound(successes: int, examples: int, confidence: float) -> float:
    """Return the exact (Clopper-Pearson) lower confidence bound of a share.

    Parameters
    ----------
    successes, examples
        How many of how many examples.
    confidence
        Probability with which the true share is at least the bound, whatever it is.

    Examples
    --------
    >>> round(lower_bound(95, 100, 0.95), 4), round(lower_bound(100, 100, 0.95), 4)
    (0.8977, 0.9705)
    """
    return 0.0 if successes <= 0 else float(stats.beta.ppf(1 - confidence, successes, examples - successes + 1))


def mean_bound(mean: float, count: int, confidence: float) -> float:
    """Return a lower confidence bound of the expectation of values from 0 to 1, whatever their distribution.

    The bound is that of Hoeffding (1963), theorem 1. It holds for shares of groups, such as documents, whose examples
    resemble each other.

    Parameters
    ----------
    mean, count
        The mean of so many independent values.
    confidence
        Probability with which the expectation is at least the bound.

    Examples
    --------
    >>> round(mean_bound(1.0, 100, 0.95), 4), mean_bound(0.0, 100, 0.95)
    (0.9705, 0.0)
    """
    allowed = math.log(1 / (1 - confidence)) / count
    mean = min(1.0, mean)
    if mean <= 0:
        return 0.0

    def excess(expectation: float) -> float:
        return float(rel_entr(mean, expectation) + rel_entr(1 - mean, 1 - expectation)) - allowed

    if excess(SMALLEST) <= 0:
        return 0.0
    root: Any = brentq(excess, SMALLEST, mean)
    return float(root)


def mean_count(counts: Sequence[tuple[int, int]], up: bool = False) -> tuple[float, int, int]:
    """Return the mean share over seeds, and the whole count of the examples of one seed that stands for it.

    Test examples repeat over seeds, so they count once: a bound uses the number of test examples of one seed, and the
    mean share as a whole count, rounded to the side on which the bound stays valid.

    Parameters
    ----------
    counts
        Successes and examples of every seed.
    up
        Whether to round up, for an upper bound, instead of down.

    Returns
    -------
    tuple of float, int and int
        The mean share, the count, and the number of examples (of the smallest seed).

    Examples
    --------
    >>> mean_count([(7, 10), (8, 10)])
    (0.75, 7, 10)
    """
    mean = sum(Fraction(successes, examples) for successes, examples in counts) / len(counts)
    examples = min(examples for _, examples in counts)
    return float(mean), (math.ceil if up else math.floor)(mean * examples), examples


def worse_p_value(gained: int, lost: int) -> float:
    """Return the p-value of the one-sided exact McNemar test that losses are no more likely than gains.

    Parameters
    ----------
    gained, lost
        Examples on which only the new run is right, and on which only the old one is.

    Examples
    --------
    >>> worse_p_value(gained=0, lost=5), worse_p_value(gained=0, lost=0)
    (0.03125, 1.0)
    """
    total = gained + lost
    return float(stats.binomtest(lost, total, 0.5, alternative="greater").pvalue) if total else 1.0


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
    groups
        The group of every example, such as its document, (N,); None where examples are independent.
    """

    labels: Tensor
    right: Tensor
    certified: Tensor
    harmed: Tensor
    domains: Tensor
    names: tuple[str, ...]
    groups: Tensor | None = None

    def units(self, which: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return what is counted: a property of examples, (N,), or its share in every group, (G,); of some rows."""
        groups = self.groups
        if rows is not None:
            which, groups = which[rows], None if groups is None else groups[rows]
        return which if groups is None else group_means(which, groups)


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
    return SeedAnswers(labels, right, certified, harmed, domains, names, parts.groups)


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
    by itself. The worst of the bounds of all domains is a bound for the worst domain at the same confidence.

    Examples of one group, such as the tokens of a document, resemble each other. Where there are groups, these are
    counted: figures are means over groups of the share in each, bounds are those of means of shares, and two runs are
    compared by the groups in which one is better.

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
        elif name == "min_domain" or (name == "max_harm" and _is_by_domain(folder, config)):
            checks.append(_check_domains(name, every, floor, confidence))
        else:
            counts = [one.units(_MEASURES[name](one)) for one in every]
            checks.append(_check_share(name.replace("_", "-"), counts, floor, confidence))
    if against is not None:
        checks += _check_against(folder, answers, Path(against), rule, confidence)
    examples = min(len(one.units(one.right)) for one in every)
    other = "" if against is None else str(against)
    unit = _unit(every[0].groups is not None)
    return CheckResult(str(run), rule, other, confidence, tuple(config.seeds), examples, tuple(checks), unit)


_MEASURES: dict[str, Callable[[SeedAnswers], Tensor]] = {
    "min_accuracy": lambda answers: answers.right,
    "min_certified": lambda answers: answers.certified,
    "max_harm": lambda answers: answers.harmed,
}


def _read_run(folder: Path) -> RunConfig:
    if is_file(folder):
        raise RedxError(f"{folder} is a file; give the folder of a finished run, as made by `redx run`.")
    return read_config(folder)


def _check_share(name: str, units: Sequence[Tensor], floor: float, confidence: float, domain: str = "") -> Check:
    """Return the check of a share, given what `SeedAnswers.units` returned for every seed."""
    most, grouped = name.startswith("max"), units[0].is_floating_point()
    examples = min(map(len, units))
    if grouped:
        mean = sum(float(shares.mean()) for shares in units) / len(units)
        bound, limit = (_group_bound(value, examples, confidence, most) for value in (mean, 0.0 if most else 1.0))
    else:
        mean, count, examples = mean_count([(int(which.sum()), len(which)) for which in units], up=most)
        find, best = (upper_bound, 0) if most else (lower_bound, examples)
        bound, limit = find(count, examples, confidence), find(best, examples, confidence)
    if (bound <= floor) if most else (bound >= floor):
        return Check(name, floor, mean, bound, True, domain=domain)
    side, relation = ("upper", "above") if most else ("lower", "below")
    reason = f"the {side} bound {show_bound(name, bound, floor)} is {relation} {show_number(floor)}"
    if (limit > floor) if most else (limit < floor):
        amount = f"{'less' if most else 'more'} than {show_bound(name, limit, floor)}"
        reason = f"{reason}, and {examples:,} {_unit(grouped)} can show no {amount}"
    return Check(name, floor, mean, bound, False, reason, domain)


def _unit(grouped: bool) -> str:
    return "groups of test examples" if grouped else "test examples"


def _group_bound(mean: float, groups: int, confidence: float, most: bool) -> float:
    """Return the upper or lower bound of the mean share of a group."""
    return 1 - mean_bound(1 - mean, groups, confidence) if most else mean_bound(mean, groups, confidence)


def _is_by_domain(folder: Path, config: RunConfig) -> bool:
    """Return whether some seed keeps its risk in every domain."""
    calibrations = (read_calibration(folder / f"seed-{seed}") for seed in config.seeds)
    return any(calibration is not None and calibration.by == "domain" for calibration in calibrations)


def _check_domains(name: str, answers: Sequence[SeedAnswers], floor: float, confidence: float) -> Check:
    """Return the check of the domain with the worst bound; a domain counts in the seeds whose test split has it."""
    measure = _MEASURES.get(name, _MEASURES["min_accuracy"])
    counts: dict[str, list[Tensor]] = {}
    for one in answers:
        for index, domain in enumerate(one.names):
            rows = one.domains == index
            if rows.any():
                counts.setdefault(domain, []).append(one.units(measure(one), rows))
    shown = name.replace("_", "-")
    checks = [_check_share(shown, of_seeds, floor, confidence, domain) for domain, of_seeds in counts.items()]
    worst = max if name.startswith("max") else min
    return worst(checks, key=lambda check: check.bound or 0.0)


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
        if not same or not _same_examples(answers[seed], other):
            raise RedxError(f"{folder} and {against} have different test splits (seed {seed}), so they do not compare.")
        pairs.append((answers[seed], other))
    measures = {"against-accuracy": _MEASURES["min_accuracy"], "against-certified": _MEASURES["min_certified"]}
    checks = []
    for name, measure in measures.items():
        counted = [tuple(one.units(measure(one)) for one in pair) for pair in pairs]
        check = _check_losses(name, [(new, old) for new, old in counted], round(1 - confidence, 12))
        checks.append(replace(check, seeds=tuple(seeds)))
    return checks


def _same_examples(new: SeedAnswers, old: SeedAnswers) -> bool:
    """Return whether two runs answer the same examples; labels of shortlists are those of the run, groups are not."""
    if new.groups is not None and old.groups is not None:
        return torch.equal(new.groups, old.groups) and torch.equal(new.domains, old.domains)
    return torch.equal(new.labels, old.labels)


def _check_losses(name: str, pairs: Sequence[tuple[Tensor, Tensor]], level: float) -> Check:
    """Return the check of losses against gains, given the units of the new and of the old run for every seed."""
    gained = Fraction(sum(int((new > old).sum()) for new, old in pairs), len(pairs))
    lost = Fraction(sum(int((old > new).sum()) for new, old in pairs), len(pairs))
    difference = sum(float(new.double().mean() - old.double().mean()) for new, old in pairs) / len(pairs)
    p_value = worse_p_value(math.ceil(gained), math.floor(lost))
    reason = ""
    if p_value < level:
        unit = _unit(pairs[0][0].is_floating_point())
        changes = f"{show_number(float(lost))} {unit} lost and {show_number(float(gained))} gained"
        reason = f"{changes}, {show_p_value(p_value, level)}"
    return Check(name, level, difference, p_value, not reason, reason, gained=float(gained), lost=float(lost))


def _test_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of the test split of every seed."""
    file: DataFile = read_json(folder / "data.json", DataFile, misfit="does not hold the hashes of data")
    return {seed: splits["test"] for seed, splits in file.sha256.items() if "test" in splits}
