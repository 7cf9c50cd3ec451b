"""`redx check` for a run of adapters: bounds of means over test documents, compared with floors.

Tokens of one document resemble each other, so documents are what is counted. The share of a document's tokens lies
between 0 and 1, and bounds of the mean of such shares hold for any distribution (Hoeffding 1963, theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.optimize import brentq
from scipy.special import rel_entr

from redx.adapters.summary import Row, read_rows
from redx.errors import RedxError
from redx.io.reading import guarded, is_file, read_json
from redx.runs.check import RULE, CheckSettings
from redx.runs.check_output import Check, CheckResult, show_bound, show_number

SMALLEST = 1e-300  # expectation that is told from 0
WAYS = {  # what is counted of a document's tokens, with the cut-off
    "min_accuracy": "router at risk",
    "min_domain": "router at risk",
    "min_certified": "certified at risk 1",
    "max_harm": "harmed at risk",
}


def check_adapters(run: Path, settings: CheckSettings) -> CheckResult:
    """Return whether a run of adapters keeps all floors.

    Figures are those of RED with the trained router and the risk cut-off, as means over the test documents of the share
    of next tokens. Every bound holds with probability `confidence` by itself, if documents are drawn independently.

    Parameters
    ----------
    run
        The run folder.
    settings
        Floors and confidence. A comparison with another run, or another rule, is refused.

    Raises
    ------
    RedxError
        If nothing is demanded, or if the run cannot be checked.
    """
    if settings.against is not None:
        raise RedxError(f"{run} is a run of adapters, which is not compared with another run; leave `against` out.")
    if settings.rule != RULE:
        raise RedxError(f"{run} is a run of adapters, of which only the rule {RULE} is checked; leave `rule` out.")
    floors = settings.floors.given()
    if not floors:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in (*WAYS, "max_risk"))
        raise RedxError(f"There is nothing to check; give a floor, as an option or in redx.toml: {names}.")
    if not is_file(run / "results.jsonl"):
        raise RedxError(f"The run in {run} is not finished; repeat the command that made it.")
    rows = read_rows(run)
    checks = []
    with guarded(run / "results.jsonl", "lacks figures, or has some of the wrong kind", "move it and repeat the run"):
        for name, floor in floors.items():
            option = name.replace("_", "-")
            if name == "max_risk":
                checks.append(_check_risk(run, floor))
                continue
            shares = _shares(run, rows, WAYS[name])
            groups = shares if name == "min_domain" else {"": [share for of in shares.values() for share in of]}
            found = [check_mean(option, of, floor, settings.confidence, domain) for domain, of in groups.items()]
            checks.append(min(found, key=lambda check: check.bound or 0.0))
        seed = int(read_json(run / "config.json", dict)["seed"])
        documents = len({row["document"] for row in rows})
    return CheckResult(str(run), RULE, "", settings.confidence, (seed,), documents, tuple(checks))


def _shares(run: Path, rows: Sequence[Row], way: str) -> dict[str, list[float]]:
    """Return the share of tokens that one way of composing counts in every document, by domain."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["way"] == way:
            shares.setdefault(row["domain"], []).append(row["right"] / row["tokens"])
    if not shares:
        raise RedxError(f"{run} was tested before this was measured; repeat the run with --out ANOTHER.")
    return shares


def check_mean(name: str, shares: Sequence[float], floor: float, confidence: float, domain: str = "") -> Check:
    """Return the check of the mean of shares.

    Parameters
    ----------
    name
        The option, `min-…` or `max-…`.
    shares
        The share of every document.
    floor, confidence
        What is demanded of the bound, and the probability with which it holds.
    domain
        The domain of the documents, where it is only one.
    """
    mean, most = sum(shares) / len(shares), name.startswith("max")
    bound = 1 - mean_bound(1 - mean, len(shares), confidence) if most else mean_bound(mean, len(shares), confidence)
    ok = bound <= floor if most else bound >= floor
    side, relation = ("upper", "above") if most else ("lower", "below")
    reason = "" if ok else f"the {side} bound {show_bound(name, bound, floor)} is {relation} {show_number(floor)}"
    return Check(name, floor, mean, bound, ok, reason, domain)


def mean_bound(mean: float, count: int, confidence: float) -> float:
    """Return a lower confidence bound of the expectation of values from 0 to 1, whatever their distribution.

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


def _check_risk(run: Path, floor: float) -> Check:
    risk = float(read_json(run / "calibration.json", dict)["risk"])
    reason = (
        "" if risk <= floor else f"the run is calibrated for the risk {show_number(risk)}, above {show_number(floor)}"
    )
    return Check("max-risk", floor, risk, risk, not reason, reason)
