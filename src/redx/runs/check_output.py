"""The result of a check: as rows of a table, as Markdown for a pull request, and as a JUnit file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from redx.errors import printable

PLACES = 4  # decimals of shares, at least
COLUMNS = ["check", "measured", "bound", "floor", "result"]


@dataclass(frozen=True)
class Check:
    """One check of a run.

    Attributes
    ----------
    name
        The option that demands it, such as `min-accuracy`; `against-accuracy` and `against-certified` for a comparison.
    floor
        What is demanded: the bound is at least this, or at most for `max-…`.
    measured
        The share in the run, as a mean over its seeds; None if it is not known. For `against-…` the difference.
    bound
        The confidence bound of the share; for `max-risk` the risk itself, for `against-…` the p-value.
    ok
        Whether the run fulfils it.
    reason
        Why it does not, without names from outside; empty if it does.
    domain
        For `min-domain`, the worst domain.
    gained, lost
        For `against-…`, the examples on which only this run is right, and those on which only the other one is; as a
        mean over seeds.
    seeds
        For `against-…`, the seeds that both runs have, on which they were compared.
    """

    name: str
    floor: float
    measured: float | None
    bound: float | None
    ok: bool
    reason: str = ""
    domain: str = ""
    gained: float | None = None
    lost: float | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """All checks of a run.

    Attributes
    ----------
    run, rule
        The run folder, and the rule that was checked.
    against
        The run that it was compared with; empty if there is none.
    confidence
        Probability with which every single bound holds.
    seeds
        Seeds of the run.
    examples
        Test examples of one seed, or groups of them.
    checks
        The checks, in the order of the options.
    unit
        What is counted: test examples, or groups of these.
    """

    run: str
    rule: str
    against: str
    confidence: float
    seeds: tuple[int, ...]
    examples: int
    checks: tuple[Check, ...]
    unit: str = "test examples"

    @property
    def broken(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return not self.broken

    @property
    def verdict(self) -> str:
        """One sentence: whether all checks hold, or which are broken and why."""
        total = len(self.checks)
        if self.ok:
            every = {1: "The check holds", 2: "Both checks hold"}.get(total, f"All {total} checks hold")
            return f"{every} for the rule {self.rule} at confidence {show_number(self.confidence)}."
        reasons = "; ".join(f"{check.name} ({check.reason})" for check in self.broken)
        if total == 1:
            return f"The check is broken: {reasons}."
        return f"{len(self.broken)} of {total} checks {'is' if len(self.broken) == 1 else 'are'} broken: {reasons}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with `ok` and `verdict`."""
        return {"ok": self.ok, "verdict": self.verdict, **asdict(self)}


def show_bound(name: str, bound: float, floor: float) -> str:
    """Return a bound as text, rounded to the side on which it stays true: up for `max-…`, else down.

    It has four decimals, or as many as the floor, so that the text is on the same side of the floor as the bound.

    Examples
    --------
    >>> show_bound("min-accuracy", 0.94996, 0.95), show_bound("max-harm", 0.01001, 0.01)
    ('0.9499', '0.0101')
    >>> show_bound("min-accuracy", 0.9985032, 0.99849)
    '0.99850'
    """
    exponent = Decimal(str(floor)).as_tuple().exponent
    places = max(PLACES, -exponent if isinstance(exponent, int) else 0)
    rounding = ROUND_CEILING if name.startswith("max") else ROUND_FLOOR
    return f"{Decimal(str(bound)).quantize(Decimal(1).scaleb(-min(places, 20)), rounding):f}"


def show_p_value(p_value: float, level: float) -> str:
    """Return a p-value as text, rounded down, with its sign.

    Examples
    --------
    >>> show_p_value(0.03125, 0.05), show_p_value(1e-9, 0.05)
    ('p = 0.0312', 'p < 0.0001')
    """
    shown = show_bound("p", p_value, level)
    return f"p = {shown}" if float(shown) else f"p < {shown[:-1]}1"


def show_number(number: float) -> str:
    """Return a floor or a mean count as text, with as many digits as it needs."""
    return f"{number:.12g}"


def table_rows(result: CheckResult) -> list[list[str]]:
    """Return one row per check: its name, what was measured, the bound, the floor, and ok or broken.

    Parameters
    ----------
    result
        The result of `check_run`.

    Returns
    -------
    list of list of str
        Cells under the names of `COLUMNS`.
    """
    return [[_label(result, check, check.domain), *_figures(check), _word(check)] for check in result.checks]


def _label(result: CheckResult, check: Check, domain: str) -> str:
    """Return the name of a check with its domain, or with its seeds where these are not all seeds of the run."""
    if check.seeds and check.seeds != result.seeds:
        return f"{check.name}, {_seeds(check.seeds)} only"
    return f"{check.name}: {domain}" if domain else check.name


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _word(check: Check) -> str:
    return "ok" if check.ok else "broken"


def _figures(check: Check) -> list[str]:
    """Return what was measured, the bound and the floor, as text."""
    floor = f"{'≤' if check.name.startswith('max') else '≥'} {show_number(check.floor)}"
    if check.measured is None or check.bound is None:
        return ["—", "—", floor]
    if check.gained is not None and check.lost is not None:
        changes = f"{show_number(check.gained)} gained, {show_number(check.lost)} lost"
        return [changes, show_p_value(check.bound, check.floor), f"p {floor}"]
    if check.name == "max-risk":
        return [show_number(check.measured), "—", floor]
    return [f"{check.measured:.{PLACES}f}", show_bound(check.name, check.bound, check.floor), floor]


def title(result: CheckResult) -> str:
    """Return the runs, the rule and the size of the test split in one line."""
    against = f" against {result.against}" if result.against else ""
    return f"{result.run}{against}: {_setting(result)}"


def _setting(result: CheckResult) -> str:
    tested = f"{_seeds(result.seeds)}, {result.examples:,} {result.unit}"
    return f"rule {result.rule}, {tested}, confidence {show_number(result.confidence)}"


def to_markdown(result: CheckResult) -> str:
    """Return a table for a comment on a pull request; names from outside are code, so that they mention nobody.

    Parameters
    ----------
    result
        The result of `check_run`.
    """
    against = f" against {_code(result.against)}" if result.against else ""
    lines = [f"### redx check {_code(result.run)}{against}: {'ok' if result.ok else 'broken'}", ""]
    lines += [result.verdict, "", f"| {' | '.join(COLUMNS)} |", "|---|---:|---:|---:|---|"]
    for check in result.checks:
        name = _label(result, check, _code(check.domain) if check.domain else "")
        word = "ok" if check.ok else "**broken**"
        lines.append(f"| {' | '.join([name, *_figures(check), word])} |")
    return "\n".join([*lines, "", f"{_setting(result)[0].upper()}{_setting(result)[1:]}.", ""])


def _code(text: str) -> str:
    """Return a name as code in Markdown, in which nothing ends the code or the cell of a table."""
    return "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"


def to_junit(result: CheckResult) -> bytes:
    """Return a JUnit file with one test case per check.

    Parameters
    ----------
    result
        The result of `check_run`.

    Returns
    -------
    bytes
        XML in UTF-8; control characters in names are written as escapes, which XML cannot hold.
    """
    counts = {"tests": str(len(result.checks)), "failures": str(len(result.broken)), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "redx check"} | counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": printable(title(result))} | counts | {"skipped": "0"})
    for check, row in zip(result.checks, table_rows(result), strict=True):
        name, measured, bound, floor, _ = map(printable, row)
        about = {"classname": printable(f"redx.check.{result.rule}"), "name": name, "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", about)
        figures = f"measured {measured}, bound {bound}, floor {floor}"
        if check.ok:
            ElementTree.SubElement(case, "system-out").text = figures
        else:
            ElementTree.SubElement(
                case, "failure", {"message": printable(check.reason), "type": "floor"}
            ).text = figures
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
