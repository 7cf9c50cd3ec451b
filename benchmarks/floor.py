"""The floor: what the base from owners' statistics is worth, by the number of random features and how they are drawn.

python benchmarks/floor.py RUN              RUN: a finished run whose base comes from statistics, such as runs/intents

Nothing is trained and no test example is read. The base is solved from the training features of the run, which is what
the sum over owners is, with penalty and temperature chosen as in a run. Figures are means over seeds and over 100
divisions of the calibration examples: 80 % set the cut-off, 20 % measure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from redx.composition.confidence import confidences
from redx.composition.parts import Cutoffs, Parts
from redx.composition.risk import harm_outcomes, harm_thresholds, risk_cutoff
from redx.composition.rules import get_rule
from redx.config import BankId, RunConfig, StatisticsConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.model.model import Model
from redx.models.feature_map import FeatureMap
from redx.models.ridge_head import Held, RidgeHead, fit_head
from redx.models.statistics import add_up, collect
from redx.runs.folder import load_seed, read_config
from redx.seeding import generator
from redx.training.datasets import read_features, read_shared, split_validation
from redx.training.features import without_copies

DIVISIONS, SHARE = 100, 0.8  # of the calibration examples, and the share of each that calibrates
SIZES, GAINS, WEIGHTS = (0, 500, 1000, 2000, 3000), (0.0, 2.0, 4.0, 8.0), (0.25, 0.5, 0.75, 1.0)
ON_SHARED, RED = BankId("residual", "shared"), get_rule("red")


@dataclass(frozen=True)
class Seed:
    """What one seed of a run brings: features, and the experts' outputs on the calibration examples."""

    model: Model
    train: Split
    held: Held
    calibration: Split
    plain: Parts  # with the base of the shared examples, on the calibration examples
    ownership: Tensor  # (N, K)


def read_seed(run: Path, config: RunConfig, seed: int) -> Seed:
    """Return what a seed brings."""
    folder = run / f"seed-{seed}"
    model, features = load_seed(folder, config), read_features(folder / "features.safetensors")
    choices, rows = split_validation(features, config.ownership.calibration, seed)
    calibration = features.validation.only(rows)
    shared = without_copies(config, read_shared(folder / "shared.safetensors"))
    domains = model.expert_index(calibration.domains)
    plain = model.parts_of(calibration.inputs, ON_SHARED, calibration.labels, domains)
    ownership = model.experts.ownership_scores(calibration.inputs)
    return Seed(model, features.train, Held(features.validation.only(choices), shared), calibration, plain, ownership)


def solve_base(seed: Seed, settings: StatisticsConfig) -> tuple[RidgeHead, float, float]:
    """Return the base of these settings, the megabytes of one owner's statistics, and the seconds to solve it."""
    map, classes = FeatureMap.create(settings, seed.model.base), seed.model.info.classes
    pooled = collect(map, seed.train.inputs, seed.train.labels, classes)
    (own,) = (seed.train.domains == 0).nonzero(as_tuple=True)
    one = collect(map, seed.train.inputs[own], seed.train.labels[own], classes)
    size = sum(tensor.nbytes for tensor in one.tensors().values()) / 1e6
    start = time.process_time()
    head = fit_head(replace(add_up({"all": pooled}, classes), map=map), seed.held)
    return head, size, time.process_time() - start


def measure(seed: Seed, head: RidgeHead, weight: float, config: RunConfig, risk: float) -> list[float]:
    """Return accuracy of the base, of RED, of RED under the worst router, and the harm: means over divisions."""
    base = head(seed.calibration.inputs)
    residuals = weight * (seed.plain.base[:, None] + seed.plain.residuals - base[:, None])
    sure = confidences(config.score, base, residuals, seed.ownership)
    parts = replace(seed.plain, base=base, residuals=residuals, confidences=sure, cutoffs=None)
    return list(divide(parts, risk))


def divide(parts: Parts, risk: float) -> Iterator[float]:
    """Yield the figures of `measure` for parts with confidences."""
    thresholds, known = harm_thresholds(RED, parts), dict[float, Tensor]()
    draw, found = generator(0, "divisions"), []
    for _ in range(DIVISIONS):
        rows = torch.randperm(len(parts), generator=draw)
        count = round(SHARE * len(rows))
        cutoff = risk_cutoff(thresholds[rows[:count]], risk)
        if cutoff not in known:
            known[cutoff] = harm_outcomes(RED, replace(parts, cutoffs=Cutoffs(cutoff, cutoff))).double()
        found.append(known[cutoff][rows[count:]].mean(0))
    yield from torch.stack(found).mean(0).tolist()


def show(title: str, rows: Sequence[tuple[str, list[list[float]]]], columns: Sequence[str]) -> None:
    """Print one table; every row has one list of figures for each seed."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, figures in rows:
        means = [fmean(values) for values in zip(*figures, strict=True)]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in means) + " |", flush=True)


def main() -> None:
    """Read a run and print three tables: by the number of random features, by their directions, and by the weight."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--risk", type=float, help="by default that of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = read_config(options.run)
    if not config.statistics.use or ON_SHARED not in config.banks:
        raise RedxError(f"The base of {options.run} does not come from statistics; give a run of intents or jsonl.")
    seeds = [read_seed(options.run, config, seed) for seed in config.seeds]
    risk, now = options.risk or seeds[0].model.current_control().risk, config.statistics
    columns = ("base", "RED", "any router", "harm")
    print(f"{options.run}, risk {risk:g}, seeds {', '.join(map(str, config.seeds))}")
    shared = [list(divide(replace(seed.plain, cutoffs=None), risk)) for seed in seeds]
    show("The base of the shared examples", [("shared examples alone", shared)], ("", *columns))

    def figures(settings: StatisticsConfig, weight: float) -> list[list[float]]:
        solved = [solve_base(seed, settings) for seed in seeds]
        pairs = zip(seeds, solved, strict=True)
        return [[*measure(seed, head, weight, config, risk), size, took] for seed, (head, size, took) in pairs]

    sizes = [(str(size), figures(now.model_copy(update={"size": size}), now.weight)) for size in SIZES]
    show("By the number of random features", sizes, ("random features", *columns, "MB an owner", "seconds"))
    gains = [(f"{gain:g}", figures(now.model_copy(update={"guided": gain}), now.weight)) for gain in GAINS]
    show("By the variance gained along the classifier", gains, ("guided", *columns, "MB an owner", "seconds"))
    weights = [(f"{weight:g}", figures(now, weight)) for weight in WEIGHTS]
    show("By the weight a of a residual a · (f - B)", weights, ("a", *columns, "MB an owner", "seconds"))


if __name__ == "__main__":
    try:
        main()
    except RedxError as error:
        raise SystemExit(f"floor: {error}") from error
