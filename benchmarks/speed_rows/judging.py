"""The rows `sweep`, `certify` and `calibrate`: what evaluation costs, and how it grows with examples and experts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch

from redx.composition.certificate import EPSILONS
from redx.composition.evaluation import Banks, certify, evaluate, match_banks
from redx.composition.noise import LEVELS, NOISES
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import RiskControl
from redx.composition.rules import RULES, get_rule
from redx.config import BankId
from redx.seeding import generator
from speed_rows.timing import BenchRow, BenchSettings, alternate, peak_memory, share, slope, spread

CLEAN = "one clean evaluation"
EXAMPLES, EXPERTS, CLASSES = 4500, 10, 150  # of the test split of CLINC150
SIZES, COUNTS = (1_000, 10_000, 100_000, 1_000_000), (5, 50, 500, 5_000)
FIXED_EXPERTS, FIXED_EXAMPLES, FEW_CLASSES = 50, 1_000, 10


def draw_parts(examples: int, experts: int, classes: int, controlled: bool = False, seed: int = 0) -> Parts:
    """Return random parts whose base is right on most examples and whose router knows most domains."""
    draw = generator(seed, "bench parts")
    labels = torch.randint(classes, (examples,), generator=draw)
    domains = labels % experts
    base = torch.randn(examples, classes, generator=draw)
    base[torch.arange(examples), labels] += 4
    gates = torch.randn(examples, experts, generator=draw)
    gates[torch.arange(examples), domains] += 4
    residuals = torch.empty(examples, experts, classes).normal_(0, 0.3, generator=draw)
    sure = torch.randn(examples, experts, generator=draw) if controlled else None
    return Parts(base, residuals, gates, labels, domains, sure, Cutoffs(0.5, 1.0) if controlled else None)


def bench_sweep(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row: one rule under one noise at one level, against one rule without noise."""
    examples, experts, classes = (60, 3, 5) if settings.quick else (EXAMPLES, EXPERTS, CLASSES)
    banks: Banks = {
        BankId("residual", "risk"): draw_parts(examples, experts, classes, True),
        BankId("residual", "anchored"): draw_parts(examples, experts, classes, seed=1),
        BankId("standalone", "plain"): draw_parts(examples, experts, classes, seed=2),
        BankId("pooled", "mlp"): draw_parts(examples, 1, classes, seed=3),
    }
    names = tuple(f"d{index}" for index in range(experts))
    pairs = len(list(match_banks(banks, tuple(RULES))))
    cells = pairs * len(NOISES) * len(LEVELS)
    seconds = alternate(
        {
            CLEAN: lambda: evaluate(banks, task="bench", seed=0, domains=names, kinds=[]),
            "whole": lambda: evaluate(banks, task="bench", seed=0, domains=names),
        },
        settings.repeat,
    )
    whole, clean = seconds["whole"], seconds[CLEAN]
    per_cell = [max(1e-9, all_of_it - once) / cells for all_of_it, once in zip(whole, clean, strict=True)]
    about = (
        f"{pairs} pairs of rule and bank, {len(NOISES)} kinds of noise, {len(LEVELS)} levels, {len(EPSILONS)} "
        f"certificates on {examples} examples, {experts} experts, {classes} classes; ratio: seconds a pair, kind and "
        "level over those of a pair without noise"
    )
    row = share("sweep", {"ours": per_cell, CLEAN: [once / pairs for once in clean]}, CLEAN, about)
    row.details.update({"seconds of the whole sweep": statistics.median(whole), "cells": cells})
    yield row


def bench_certify(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row of certificates."""
    rule = get_rule("red")
    yield _growth("certify", lambda parts: certify(rule, parts), settings)


def bench_calibrate(settings: BenchSettings) -> Iterator[BenchRow]:
    """Yield the row of calibration: thresholds in both regions and both cut-offs."""
    yield _growth("calibrate", lambda parts: RiskControl(0.05).calibrate(parts).cutoffs, settings)


def _growth(name: str, run: Callable[[Parts], object], settings: BenchSettings) -> BenchRow:
    """Return a row with the slopes of the time in the number of examples and of experts, and the peak memory."""
    sizes = (100, 400) if settings.quick else SIZES
    counts = (2, 8) if settings.quick else COUNTS
    fixed_experts = 5 if settings.quick else FIXED_EXPERTS
    fixed_examples = 100 if settings.quick else FIXED_EXAMPLES
    peak, by_size, by_count = 0.0, [], []
    for size in sizes:
        parts = draw_parts(size, fixed_experts, FEW_CLASSES, True)
        peak = peak_memory(lambda parts=parts: run(parts))
        by_size.append(_seconds(lambda parts=parts: run(parts), settings.repeat))
        del parts
    for count in counts:
        parts = draw_parts(fixed_examples, count, FEW_CLASSES, True)
        by_count.append(_seconds(lambda parts=parts: run(parts), settings.repeat))
        del parts
    in_size = [slope(sizes, times) for times in zip(*by_size, strict=True)]
    in_count = [slope(counts, times) for times in zip(*by_count, strict=True)]
    parts_mb = sizes[-1] * fixed_experts * FEW_CLASSES * 4 / 1e6
    about = (
        f"N = {sizes[0]:,} to {sizes[-1]:,} with K = {fixed_experts}, K = {counts[0]:,} to {counts[-1]:,} with "
        f"N = {fixed_examples:,}, C = {FEW_CLASSES}; ours: seconds at the largest N; ratio: slope of log seconds in "
        "log N"
    )
    details = {
        "slope in K": spread(in_count),
        "seconds by N": {str(size): statistics.median(times) for size, times in zip(sizes, by_size, strict=True)},
        "seconds by K": {str(count): statistics.median(times) for count, times in zip(counts, by_count, strict=True)},
        "peak MB beside the parts, largest N": peak,
        "MB of the residuals, largest N": parts_mb,
    }
    in_examples = spread(in_size)
    figures = in_examples["ratio"], in_examples["low"], in_examples["high"]
    return BenchRow(name, statistics.median(by_size[-1]), {}, *figures, about=about, details=details)


def _seconds(run: Callable[[], object], repeat: int) -> list[float]:
    return alternate({"ours": run}, repeat)["ours"]
