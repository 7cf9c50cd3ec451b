"""Monitoring: tests that may be looked at after every line, of whether the promise of risk control still holds.

Harm. With labels, the null is 'the conditional mean harm of every line is at most the risk'. For a harm x between 0 and
1 and a factor f > 1, `f^x ≤ 1 + (f - 1) x`, so under the null

    E = f^x / (1 + (f - 1) risk)

has a conditional mean of at most 1: it is what a fair bet on more harm than the risk pays. The wealth is a weighted
mean, over factors f, of the products of E. It is a nonnegative supermartingale that starts at 1, so by Ville's
inequality it ever reaches 1 / δ with a probability of at most δ, over an endless stream and whenever one looks. It
depends on the lines through two numbers alone, their count and their harm. It falls as the risk grows, so the smallest
risk at which it never reached 1 / δ is a lower bound of the harm that holds at all times with probability 1 - δ. Where
the harm changes, it bounds the mean harm of the lines up to the one at which the bound was reached.

Confidences. Without labels, the null is that the largest confidences of the experts on new lines are exchangeable with
those on the calibration examples. Then the smoothed rank of each among all before it is a p-value, these p-values are
independent and uniform (Vovk), and a bet `κ u^(κ - 1)` with κ < 1 on a uniform number u pays 1 on average. The bets are
on large, small, extreme and middling ranks. A share of the money, which shrinks with the lines, is put into the bets at
every line, so that a change is noticed whenever it comes. Confidences are sorted into cells that do not depend on the
data, so that memory does not grow; equal ones have a random order.

The probability of a false alarm is shared: half of δ is for the confidences. Where the risk is kept in each domain, a
quarter is for all domains together and a quarter is divided equally among the domains that have a promise of their own.
Otherwise half is for all lines together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from redx.errors import RedxError
from redx.seeding import generator

FACTORS = 1 + 2.0 ** np.arange(-5, 7)  # f of the bets on harm, from 1.03 to 65
SHARES = 1 / (1 + np.log2((FACTORS - 1) / 2) ** 2)  # of the money: most is on three times the risk
SHARES = SHARES / SHARES.sum()
POWERS = np.array([0.25, 0.5, 0.75])  # κ of the bets on ranks
SMALLEST = 1e-9  # a smaller number counts as this one, where it would pay more
CELLS, BLOCK = 1024, 32  # cells that confidences are sorted into, and cells of a block
FINENESS = 32  # cells per unit of asinh(confidence)
OVERALL, DOMAIN, CONFIDENCES = "overall", "domain", "confidences"  # kinds of tests


class Deltas(NamedTuple):
    """The probabilities of a false alarm of the single tests.

    Attributes
    ----------
    confidences
        Of the test without labels.
    overall
        Of the test of all labelled lines.
    domain
        Of the test of one domain; None where no domain has a promise of its own.
    """

    confidences: float
    overall: float
    domain: float | None


def share_delta(delta: float, domains: int) -> Deltas:
    """Return how the probability of a false alarm is shared between the tests.

    Parameters
    ----------
    delta
        The probability that any of them ever raises a false alarm.
    domains
        The number of domains that have a promise of their own.

    Examples
    --------
    >>> share_delta(0.08, domains=4)
    Deltas(confidences=0.04, overall=0.02, domain=0.005)
    >>> share_delta(0.08, domains=0)
    Deltas(confidences=0.04, overall=0.04, domain=None)
    """
    if not 0 < delta < 1:
        raise RedxError(f"A probability of a false alarm lies between 0 and 1, not {delta:g}; choose one such as 0.05.")
    if not domains:
        return Deltas(delta / 2, delta / 2, None)
    return Deltas(delta / 2, delta / 4, delta / 4 / domains)


def log_harm_wealth(harm: np.ndarray | float, lines: np.ndarray | float, risk: float) -> np.ndarray:
    """Return the logarithm of the wealth of the bets on more harm than the risk.

    Parameters
    ----------
    harm
        The sum of the harm of the lines so far, of any shape.
    lines
        The number of lines so far, of the same shape.
    risk
        The harm of a line that the null allows, from 0 to 1.

    Examples
    --------
    >>> bool(log_harm_wealth(0, 100, 0.01) < 0 < log_harm_wealth(10, 100, 0.01))
    True
    """
    gains, costs = np.log(FACTORS), np.log1p((FACTORS - 1) * risk)
    logs = np.asarray(harm)[..., None] * gains - np.asarray(lines)[..., None] * costs + np.log(SHARES)
    return np.logaddexp.reduce(logs, axis=-1)


def harm_lower_bound(harm: float, lines: int, delta: float) -> float:
    """Return the smallest mean harm that so much harm on so many lines does not contradict at level `delta`.

    Examples
    --------
    >>> harm_lower_bound(0, 100, 0.05)
    0.0
    >>> 0.03 < harm_lower_bound(10, 100, 0.05) < 0.1
    True
    """
    low, high, wanted = 0.0, 1.0, -math.log(delta)
    if log_harm_wealth(harm, lines, 0.0) < wanted:
        return 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if log_harm_wealth(harm, lines, middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Reading:
    """The state of one test.

    Attributes
    ----------
    test
        The kind of test: `overall`, `domain` or `confidences`.
    name
        What is tested: `all` lines, a domain or several that share a promise, or `confidences`.
    lines
        The number of lines that were counted.
    harmed, harm
        How many of them are harmed, and their share; None for confidences, and where there are no lines.
    lower
        Lower bound of the harm, which holds at all times with the probability that the test leaves.
    e_value, largest
        The wealth of the bets now, and the largest so far; None where nothing is tested.
    threshold
        The wealth that raises the alarm; None where nothing is tested.
    alarm
        Whether it was ever reached.
    """

    test: str
    name: str
    lines: int
    harmed: float | None
    harm: float | None
    lower: float | None
    e_value: float | None
    largest: float | None
    threshold: float | None
    alarm: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


class HarmTest:
    """A test of 'the mean harm is at most the risk' on labelled lines, which may be looked at after every line.

    Parameters
    ----------
    risk
        The harm that was promised.
    delta
        The probability of a false alarm over an endless stream; None to count without a test.

    Examples
    --------
    >>> test = HarmTest(risk=0.01, delta=0.05)
    >>> for harmed in [False] * 20 + [True] * 5:
    ...     test.update(harmed)
    >>> test.alarm, test.lower > 0.01
    (True, True)
    """

    def __init__(self, risk: float, delta: float | None) -> None:
        self.risk, self.delta = risk, delta
        self.lines, self.harm = 0, 0.0
        self.peak, self.lower = 0.0, 0.0

    def update(self, harm: float) -> None:
        """Count a line whose harm lies between 0 and 1: one that is not harmed can never raise an alarm."""
        if not 0 <= harm <= 1:
            raise RedxError(f"The harm of a line lies between 0 and 1, not {harm}; count whether it is harmed.")
        self.lines, self.harm = self.lines + 1, self.harm + harm
        if harm and self.delta is not None:
            self.peak = max(self.peak, self.log_wealth)
            if self.lower * self.lines < self.harm:  # the bound is below the share, so only then can it grow
                self.lower = max(self.lower, harm_lower_bound(self.harm, self.lines, self.delta))

    @property
    def log_wealth(self) -> float:
        """The logarithm of the wealth."""
        return float(log_harm_wealth(self.harm, self.lines, self.risk))

    @property
    def alarm(self) -> bool:
        """Whether the wealth ever reached 1 / δ."""
        return self.delta is not None and self.peak >= -math.log(self.delta)

    def reading(self, test: str, name: str) -> Reading:
        """Return the state, under a kind and a name."""
        share = self.harm / self.lines if self.lines else None
        if self.delta is None:
            return Reading(test, name, self.lines, self.harm, share, None, None, None, None, False)
        now, largest = _capped(self.log_wealth), _capped(self.peak)
        return Reading(test, name, self.lines, self.harm, share, self.lower, now, largest, 1 / self.delta, self.alarm)


class ConfidenceTest:
    """A test of 'the confidences are exchangeable with those before', which needs no labels.

    Parameters
    ----------
    delta
        The probability of a false alarm over an endless stream.
    seed
        Of the random order of equal confidences.
    streams
        How many streams are tested side by side, each on its own.

    Examples
    --------
    >>> test = ConfidenceTest(delta=0.05)
    >>> test.compare_with(np.linspace(-3, 3, 200))
    >>> p_values = [test.update(-2.9) for _ in range(100)]
    >>> bool(test.alarm[0])
    True
    """

    def __init__(self, delta: float, seed: int = 0, streams: int = 1) -> None:
        self.delta, self.lines = delta, 0
        self._draw = generator(seed, "monitor", "ties")
        self._seen, self._rows = 0, np.arange(streams)
        self._cells = np.zeros((streams, CELLS // BLOCK, BLOCK), dtype=np.int64)
        self._blocks = np.zeros((streams, CELLS // BLOCK), dtype=np.int64)
        self._reserve = 0.0  # the logarithm of what is not bet yet
        self._bets = np.full((streams, 4 * len(POWERS)), -np.inf)  # of the wealth of every bet
        self.log_wealth, self.peak = np.zeros(streams), np.zeros(streams)

    def compare_with(self, values: np.ndarray | Sequence[float]) -> None:
        """Take values, (n,) or (n, S), as seen before, such as those of the calibration examples."""
        for value in np.asarray(values, dtype=float):
            self._count(*self._places(value))

    def update(self, values: np.ndarray | float) -> np.ndarray:
        """Count the next value of every stream, (S,), and return their p-values, (S,): small where a value is large."""
        block, cell = self._places(values)
        later = np.arange(BLOCK)
        above = (self._blocks * (later[: CELLS // BLOCK] > block[:, None])).sum(1)
        above += (self._cells[self._rows, block] * (later > cell[:, None])).sum(1)
        equal = self._cells[self._rows, block, cell] + 1  # with itself
        random = torch.rand(len(self._rows), generator=self._draw, dtype=torch.float64).numpy()
        p = (above + random * equal) / (self._seen + 1)
        self._count(block, cell)
        self._bet(p)
        return p

    @property
    def alarm(self) -> np.ndarray:
        """Whether the wealth of a stream ever reached 1 / δ, (S,)."""
        return self.peak >= -math.log(self.delta)

    def reading(self) -> Reading:
        """Return the state of the first stream."""
        now, largest = _capped(float(self.log_wealth[0])), _capped(float(self.peak[0]))
        return Reading(
            CONFIDENCES, "confidences", self.lines, None, None, None, now, largest, 1 / self.delta, bool(self.alarm[0])
        )

    def _places(self, values: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        values = np.broadcast_to(np.asarray(values, dtype=float), self._rows.shape)
        if np.isnan(values).any():
            raise RedxError("A confidence is NaN, so its rank is not known; retrain the module that computed it.")
        half = CELLS // 2
        scaled = np.rint(np.arcsinh(values) * FINENESS).clip(-half, half - 1)
        return np.divmod(scaled.astype(np.int64) + half, BLOCK)

    def _count(self, block: np.ndarray, cell: np.ndarray) -> None:
        self._cells[self._rows, block, cell] += 1
        self._blocks[self._rows, block] += 1
        self._seen += 1

    def _bet(self, p: np.ndarray) -> None:
        share = 0.2 / (self.lines + 2)  # of the reserve; the sum of shares is infinite, so that all is bet in the end
        new = self._reserve + math.log(share / self._bets.shape[1])
        self._bets = np.logaddexp(self._bets, new) + log_rank_bets(p)
        self._reserve += math.log1p(-share)
        self.log_wealth = np.logaddexp(np.logaddexp.reduce(self._bets, axis=1), self._reserve)
        self.peak = np.maximum(self.peak, self.log_wealth)
        self.lines += 1


def log_rank_bets(p: np.ndarray) -> np.ndarray:
    """Return the logarithm of what every bet on a p-value pays: (S,) to (S, J).

    Each pays at most 1 on average where the p-value is uniform. There are bets on small, large, extreme and middling
    p-values, each with the powers `POWERS`.
    """
    away = np.abs(2 * p - 1)
    uniform = np.stack([p, 1 - p, 1 - away, away], -1).clip(SMALLEST)  # (S, 4)
    logs = np.log(POWERS) + (POWERS - 1) * np.log(uniform)[..., None]  # (S, 4, powers)
    return logs.reshape(len(p), -1)


class Monitor:
    """All tests of a promise, whose alarms are false with a probability of at most `delta` together.

    Parameters
    ----------
    risk
        The harm that was promised.
    domains
        The domains that are told apart: each an entry, with the names of those that share a promise.
    tested
        Whether the promise holds in every domain. Otherwise it holds for all lines together, and domains are counted
        but not tested.
    delta
        The probability that any test ever raises a false alarm.
    reference
        Largest confidences of the experts on the calibration examples, (n,).
    seed
        Of the random order of equal confidences.

    Examples
    --------
    >>> monitor = Monitor(0.01, [("billing",), ("cards", "loans")], tested=True)
    >>> monitor.add_label(True, "loans")
    >>> [(one.name, one.lines) for one in monitor.readings()]
    [('all', 1), ('billing', 0), ('cards + loans', 1), ('confidences', 0)]
    """

    def __init__(
        self,
        risk: float,
        domains: Sequence[Sequence[str]] = (),
        tested: bool = False,
        delta: float = 0.05,
        reference: np.ndarray | Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        self.risk, self.delta, self.tested = risk, delta, tested and bool(domains)
        self.deltas = share_delta(delta, len(domains) if self.tested else 0)
        self.overall = HarmTest(risk, self.deltas.overall)
        self.domains = {" + ".join(names): HarmTest(risk, self.deltas.domain) for names in domains}
        self._places = {name: " + ".join(names) for names in domains for name in names}
        self.confidences = ConfidenceTest(self.deltas.confidences, seed)
        self.confidences.compare_with(reference)

    def add_confidence(self, confidence: float) -> None:
        """Count a line by the largest confidence of an expert on it."""
        self.confidences.update(confidence)

    def add_label(self, harm: float, domain: str | None) -> None:
        """Count a line whose label is known: its harm and its true domain; None where that is not known."""
        if domain is not None and domain not in self._places:
            raise RedxError(f"There is no domain {domain!r}; choose one of {', '.join(self._places) or 'none'}.")
        self.overall.update(harm)
        if domain is not None:
            self.domains[self._places[domain]].update(harm)

    def readings(self) -> list[Reading]:
        """Return the state of every test: all lines, every domain, the confidences."""
        domains = [test.reading(DOMAIN, name) for name, test in self.domains.items()]
        return [self.overall.reading(OVERALL, "all"), *domains, self.confidences.reading()]

    @property
    def alarm(self) -> bool:
        """Whether any test raised an alarm."""
        return any(reading.alarm for reading in self.readings())

    def verdict(self) -> str:
        """Return one sentence: whether there is an alarm, and why."""
        overall, *domains, confidences = self.readings()
        harmful = [one for one in (overall, *domains) if one.alarm]
        if harmful:
            worst = max(harmful, key=lambda one: one.lower or 0)
            where = "" if worst is overall else f" in {worst.name}"
            return f"Alarm: the harm{where} is at least {worst.lower:.4f}, more than the promised {self.risk:.4g}."
        if confidences.alarm:
            return (
                "Alarm: the confidences are not like those of the calibration examples, so nothing is promised for "
                "these inputs; label some of them, and calibrate anew."
            )
        if not overall.lines:
            return f"No alarm: the confidences of {_count(confidences.lines)} raise no doubt; no line is labelled."
        labelled, kept = _count(overall.lines, "labelled "), " in any domain" if self.tested else ""
        return (
            f"No alarm: {labelled} are no evidence against a harm of at most {self.risk:.4g}{kept}, and the "
            f"confidences of {_count(confidences.lines)} raise no doubt."
        )


def _count(lines: int, kind: str = "") -> str:
    return f"{lines:,} {kind}line{'' if lines == 1 else 's'}"


def _capped(log_wealth: float) -> float:
    """Return the wealth, at most 1e300, so that it can be written as a number."""
    return math.exp(min(log_wealth, math.log(1e300)))
