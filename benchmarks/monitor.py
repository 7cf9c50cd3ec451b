"""How soon `redx monitor` notices that a promise is broken, and how often it raises a false alarm.

python benchmarks/monitor.py [--streams 1000] [--confidence-streams 200] [--lines 100000]

Streams are simulated. The risk is 0.01 and δ is 0.05. Harm that is too high is three times the risk. With ten domains,
lines fall into them at random, and one of them is harmed. Confidences are normal numbers, compared with those of 500
calibration examples, and the change shifts them by so many standard deviations after 1,000 lines.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from redx.composition.monitoring import ConfidenceTest, log_harm_wealth, share_delta

RISK, DELTA, DOMAINS, TIMES = 0.01, 0.05, 10, 3
PIECE = 200  # streams that are simulated at once
LONGEST = 20_000  # lines in which a change has to be noticed
CALIBRATION, BEFORE, AFTER = 500, 1_000, 5_000


def first_alarms(harm: np.ndarray, lines: np.ndarray, delta: float) -> np.ndarray:
    """Return the line of the first alarm of every stream, (S,), from sums of harm and counts, (S, N); 0 for none."""
    alarms = log_harm_wealth(harm, lines, RISK) >= -math.log(delta)
    return np.where(alarms.any(1), alarms.argmax(1) + 1, 0)


def harm_alarms(draw: np.random.Generator, streams: int, lines: int, chance: float, delta: float) -> np.ndarray:
    """Return the first alarms of streams of labelled lines that are harmed with one chance."""
    found = []
    for start in range(0, streams, PIECE):
        size = min(PIECE, streams - start)
        state, first = np.zeros((size, 1)), np.zeros(size, dtype=int)
        for done in range(0, lines, 1_000):
            harm = state + (draw.random((size, min(1_000, lines - done))) < chance).cumsum(1)
            counts = np.broadcast_to(np.arange(1, harm.shape[1] + 1) + done, harm.shape)
            alarms = first_alarms(harm, counts, delta)
            first = np.where((first == 0) & (alarms > 0), alarms + done, first)
            state = harm[:, -1:]
        found.append(first)
    return np.concatenate(found)


def domain_alarms(
    draw: np.random.Generator, streams: int, lines: int, bad: float, good: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return, for streams over ten domains, the first alarm of any test, and how many lines the first domain had then.

    The first domain is harmed with the chance `bad`, the others with `good`.
    """
    deltas = share_delta(DELTA, DOMAINS)
    assert deltas.domain is not None
    firsts, own = np.zeros(streams, dtype=int), np.zeros(streams, dtype=int)
    for stream in range(streams):
        domain = draw.integers(DOMAINS, size=lines)
        harmed = draw.random(lines) < np.where(domain == 0, bad, good)
        alarms = [first_alarms(harmed.cumsum()[None], np.arange(1, lines + 1)[None], deltas.overall)[0]]
        for one in range(DOMAINS):
            rows = (domain == one).nonzero()[0]
            first = first_alarms(harmed[rows].cumsum()[None], np.arange(1, len(rows) + 1)[None], deltas.domain)[0]
            alarms.append(rows[first - 1] + 1 if first else 0)
        raised = [alarm for alarm in alarms if alarm]
        firsts[stream] = min(raised, default=0)
        own[stream] = (domain[: firsts[stream]] == 0).sum()
    return firsts, own


def confidence_alarms(draw: np.random.Generator, streams: int, lines: int, shift: float | None) -> np.ndarray:
    """Return the first alarms of streams of confidences; those of a change count from it."""
    test = ConfidenceTest(share_delta(DELTA, 0).confidences, streams=streams)
    test.compare_with(draw.normal(size=(CALIBRATION, streams)))
    first = np.zeros(streams, dtype=int)
    start = 0 if shift is None else BEFORE
    for line in range(1, lines + start + 1):
        test.update(draw.normal(size=streams) + (shift or 0.0) * (line > start))
        first = np.where((first == 0) & test.alarm, max(1, line - start), first)
    return first


def told(name: str, first: np.ndarray) -> None:
    """Print the median and the 95 % quantile of first alarms; streams without one count as infinite."""
    values = np.where(first == 0, math.inf, first.astype(float))
    median, late = np.quantile(values, [0.5, 0.95], method="higher")
    print(f"{name:<62} {median:>8,.0f} {late:>8,.0f}   alarm in {float((first > 0).mean()):.3f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--confidence-streams", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100_000)
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    alone, shared = share_delta(DELTA, 0), share_delta(DELTA, DOMAINS)
    print(f"risk {RISK}, δ {DELTA}, harm {TIMES * RISK:g}: lines until the alarm{'':>10} median     95 %")
    told("one stream, risk over all lines", harm_alarms(draw, given.streams, LONGEST, TIMES * RISK, alone.overall))
    told("one stream, risk by domain", harm_alarms(draw, given.streams, LONGEST, TIMES * RISK, shared.overall))
    assert shared.domain is not None
    told("one domain of ten, its own lines", harm_alarms(draw, given.streams, LONGEST, TIMES * RISK, shared.domain))
    first, own = domain_alarms(draw, given.streams, LONGEST, TIMES * RISK, RISK)
    told("ten domains, one harmed, others at the risk: all lines", first)
    told("… its own lines", own)
    for shift in (0.25, 0.5, 1.0):
        found = confidence_alarms(draw, given.confidence_streams, AFTER, -shift)
        told(f"confidences, a shift of {shift:g} after {BEFORE:,} lines", found)
    print(f"\nstreams with a false alarm in {given.lines:,} lines")
    false = harm_alarms(draw, given.streams, given.lines, RISK, alone.overall) > 0
    print(f"harm at the risk, over all lines (δ / 2 = {alone.overall:g}): {false.mean():.4f} of {given.streams}")
    fewer = max(1, given.streams // 5)
    false = domain_alarms(draw, fewer, given.lines, RISK, RISK)[0] > 0
    print(f"harm at the risk, by domain, 11 tests (δ / 2 = {alone.overall:g}): {false.mean():.4f} of {fewer}")
    false = confidence_alarms(draw, given.confidence_streams, given.lines, None) > 0
    print(f"confidences (δ / 2 = {alone.confidences:g}): {false.mean():.4f} of {given.confidence_streams}")


if __name__ == "__main__":
    main()
