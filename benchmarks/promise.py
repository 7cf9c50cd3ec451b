"""A promise to every owner: harm by domain, what it costs, and what one bad expert of many does.

python benchmarks/promise.py RUN [--risk 0.01]     RUN: a finished run with own classes, such as runs/intents

Figures are means over 200 random divisions of the calibration and test examples of a seed, as many of which calibrate
as in the run; the others measure. Experts are tried on the choice examples of the run, which take no further part.
Bad experts are made of the run's own: every one is replaced in turn, its statistics stay in the base.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from redx.composition.parts import Cutoffs, Parts
from redx.composition.quarantine import Trial, try_experts
from redx.composition.risk import RiskControl, harm_outcomes
from redx.composition.rules import get_rule
from redx.config import RunConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.model.model import Model
from redx.models.expert import Expert
from redx.models.library import CLOSED_GATE
from redx.runs.folder import load_seed, read_config
from redx.seeding import generator
from redx.training.datasets import concatenate, read_features, split_validation

DIVISIONS, MIXES = 200, 10_000
RED = get_rule("red")
Change = Callable[[Expert, Expert, torch.Generator], Expert]  # of an expert, given another one


class Seed:
    """One seed of a run: its model, its choice examples, and its calibration and test examples together."""

    def __init__(self, run: Path, config: RunConfig, seed: int) -> None:
        folder = run / f"seed-{seed}"
        self.model: Model = load_seed(folder, config)
        self.features = read_features(folder / "features.safetensors")
        choices, rows = split_validation(self.features, config.ownership.calibration, seed)
        self.choices = self.features.validation.only(choices)
        self.held, self.bank = len(rows), config.controlled_bank
        self.split: Split = concatenate([self.features.validation.only(rows), self.features.test])

    def record(self, quarantine: bool = True, own: bool = True, forced: int | None = None) -> tuple[Parts, list[Trial]]:
        """Return the record of all examples with confidences, and the trials.

        Parameters
        ----------
        quarantine, own
            Whether experts that harm are silent, and whether one is where its answer is none of its own classes.
        forced
            An expert that is silent whatever its trial says.
        """
        assert self.bank is not None
        out = torch.zeros(len(self.model.experts), dtype=torch.bool)
        trials: list[Trial] = []
        if quarantine:
            found, ownership = self.model._outputs(self.choices, self.bank)
            scored = partial(self._scored, replace(found, gates=ownership), ownership, own)
            trials = try_experts(scored, len(out), self.model.config.risk or 0.01, claims=True)
            out = torch.tensor([trial.quarantined for trial in trials])
        if forced is not None:
            out[forced] = True
        found, ownership = self.model._outputs(self.split, self.bank)
        gates = self.model.gates(self.split.inputs).masked_fill(out, CLOSED_GATE)
        return replace(self._scored(found, ownership, own, out), gates=gates), trials

    def _scored(self, found: Parts, ownership: Tensor, own: bool, out: Tensor) -> Parts:
        if own:
            return self.model._scored(found, ownership, out)
        library = self.model.experts
        kept, library._own = library.own_classes(), torch.ones(len(out), found.base.shape[1], dtype=torch.bool)
        try:
            return self.model._scored(found, ownership, out)
        finally:
            library._own = kept

    @contextmanager
    def changed(self, place: int, change: Change, other: int) -> Iterator[None]:
        """Replace one expert for a while."""
        with self.model.experts.changing() as library:
            name = library.names[place]
            expert, another = library[name], library[library.names[other]]
            library.put(change(expert, another, generator(0, "bad experts", name)))
            yield


def divide(parts: Parts, held: int, domains: Tensor, names: tuple[str, ...], risk: float, by: str) -> Tensor:
    """Return the figures of every domain, (D, 4): base, RED, RED under any router, and harm; means over divisions.

    Parameters
    ----------
    parts
        The record of all examples.
    held
        How many of them calibrate.
    domains
        The domain of every class, (C,).
    names
        The names of the domains.
    risk, by
        The risk, and whether it is kept over `all` examples or by `domain`.
    """
    every = RiskControl(risk, by=by).calibrate(parts, class_domains=domains, domain_names=names)
    of_example, draw = domains[parts.true_labels()], generator(0, "divisions")
    confidences, steps = parts.confidences, _outcomes_by_active(parts)
    assert confidences is not None
    found = torch.zeros(len(names), 4, dtype=torch.double)
    for _ in range(DIVISIONS):
        rows = torch.randperm(len(parts), generator=draw)
        calibrate, measure = rows[:held], rows[held:]
        settings = {"domains": of_example[calibrate], "class_domains": domains, "domain_names": names, "by": by}
        thresholds = {region: values[calibrate] for region, values in every.thresholds.items()}
        control = RiskControl.from_thresholds(thresholds, risk, **settings)
        control.given = True
        cutoffs = control.cutoffs_for(parts.base[measure]).simplex
        active = (confidences[measure] > torch.as_tensor(cutoffs).reshape(-1, 1)).sum(-1)
        outcomes = steps[measure, active]
        for domain in range(len(names)):
            found[domain] += outcomes[of_example[measure] == domain].mean(0)
    return found / DIVISIONS


def _outcomes_by_active(parts: Parts) -> Tensor:
    """Return the outcomes of every example with its 0, 1, … K most confident experts, (N, K + 1, 4)."""
    assert parts.confidences is not None
    ordered = parts.confidences.sort(-1, descending=True).values
    heard = (ordered > -torch.inf).sum(-1)  # (N,): experts that are not silent in any case
    cutoffs = torch.cat([ordered, torch.full_like(ordered[:, :1], -torch.inf)], 1)
    states = torch.zeros(*cutoffs.shape, 4, dtype=torch.double)
    for active in range(cutoffs.shape[1]):
        states[:, active] = states[:, active - 1] if active else 0
        rows = (heard >= active).nonzero()[:, 0]
        some, cutoff = parts.only(rows), cutoffs[rows, active]
        assert some.confidences is not None
        state = some.with_confidences(some.confidences, Cutoffs(cutoff, cutoff))
        states[rows, active] = harm_outcomes(RED, state).double()
    return states


def noise(expert: Expert, other: Expert, draw: torch.Generator) -> Expert:
    """Return an expert with random weights of the same scale, which claims what the original does."""
    return _with_bank(expert, lambda tensor: torch.randn(tensor.shape, generator=draw) * tensor.float().std())


def permuted(expert: Expert, other: Expert, draw: torch.Generator) -> Expert:
    """Return an expert whose answers are permuted among its own classes."""
    own = expert.tensors("ownership")["classes"].bool().flatten().nonzero()[:, 0]
    order = torch.arange(len(expert.tensors("ownership")["classes"].flatten()))
    order[own] = own.roll(1)

    def permute(tensor: Tensor) -> Tensor:
        axes = [axis for axis, size in enumerate(tensor.shape) if size == len(order)]
        return tensor.index_select(axes[-1], order) if axes else tensor

    return _with_bank(expert, permute)


def copied(expert: Expert, other: Expert, draw: torch.Generator) -> Expert:
    """Return a copy of another expert under this one's name."""
    return expert.changed(tensors=other.tensors())


def greedy(expert: Expert, other: Expert, draw: torch.Generator) -> Expert:
    """Return an expert that claims all classes and every example."""
    return _claiming(expert, expert)


def greedy_noise(expert: Expert, other: Expert, draw: torch.Generator) -> Expert:
    """Return an expert of random weights that claims all classes and every example."""
    return _claiming(expert, noise(expert, other, draw))


def _claiming(expert: Expert, changed: Expert) -> Expert:
    tensors = dict(changed.tensors())
    tensors["ownership.classes"] = torch.ones_like(expert.tensors()["ownership.classes"])
    return changed.changed(tensors=tensors)


def _with_bank(expert: Expert, change: Callable[[Tensor], Tensor]) -> Expert:
    """Return an expert whose residual networks are changed."""
    tensors = {
        name: change(value) if name.startswith("residual/") and value.is_floating_point() else value
        for name, value in expert.tensors().items()
    }
    return expert.changed(tensors=tensors)


KINDS: dict[str, Change] = {
    "noise": noise,
    "its answers permuted": permuted,
    "a copy of another": copied,
    "claims everything": greedy,
    "noise that claims everything": greedy_noise,
}


def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, list[float]]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for name, figures in rows:
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in figures) + " |", flush=True)


def main() -> None:
    """Read a run and print three tables: by domain, what silence and quarantine cost, and bad experts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--risk", type=float, default=0.01)
    parser.add_argument("--part", choices=("all", "domains", "bad"), default="all")
    parser.add_argument("--seed", type=int, action="append", help="seed of the run; by default all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = read_config(options.run)
    numbers = options.seed or list(config.seeds)
    seeds = [Seed(options.run, config, seed) for seed in numbers]
    print(f"{options.run}, risk {options.risk:g}, seeds {', '.join(map(str, numbers))}, {DIVISIONS} divisions")
    if options.part in ("all", "domains"):
        show_domains(seeds, options.risk)
    if options.part in ("all", "bad"):
        show_bad(seeds, options.risk)


def _measure(seed: Seed, parts: Parts, risk: float, by: str) -> Tensor:
    domains, names = seed.model._class_domains()
    if domains is None:
        raise RedxError("Classes belong to several domains in this run; give one such as runs/intents.")
    return divide(parts, seed.held, torch.tensor(domains), tuple(names), risk, by)


def show_domains(seeds: list[Seed], risk: float) -> None:
    """Print the harm of the worst domain and under mixes of domains, marginal and by domain."""
    rows = []
    forms = {
        "over all examples, as before": ("all", False, False),
        "over all examples": ("all", True, True),
        "by domain, without silence and quarantine": ("domain", False, False),
        "by domain, without quarantine": ("domain", False, True),
        "by domain": ("domain", True, True),
    }
    for name, (by, quarantine, own) in forms.items():
        found = torch.stack([_measure(seed, seed.record(quarantine, own)[0], risk, by) for seed in seeds]).mean(0)
        mixes = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(len(found)), MIXES))
        harm = found[:, 3]
        rows.append((name, [*found.mean(0).tolist(), float(harm.max()), float((mixes @ harm).max())]))
    columns = ("risk kept", "base", "RED", "any router", "harm", "worst domain", f"worst of {MIXES:,} mixes")
    show("All experts as they were trained; means over domains", columns, rows)


def show_bad(seeds: list[Seed], risk: float) -> None:
    """Print what becomes of RED where one expert of all is bad, on average over which one."""
    rows, caught = [], []
    alone = {  # by seed and place: what is left without the expert
        (number, place): _measure(seed, seed.record(forced=place)[0], risk, "domain").mean(0)
        for number, seed in enumerate(seeds)
        for place in range(len(seed.model.experts))
    }
    for name, change in KINDS.items():
        figures: list[list[float]] = []
        quarantined = 0
        for number, seed in enumerate(seeds):
            count = len(seed.model.experts)
            for place in range(count):
                without = alone[number, place]
                with seed.changed(place, change, (place + 1) % count):
                    naive = _measure(seed, seed.record(False, False)[0], risk, "all").mean(0)
                    parts, trials = seed.record()
                    kept = _measure(seed, parts, risk, "domain")
                quarantined += trials[place].quarantined
                figures.append(
                    [
                        float(without[0]),
                        float(naive[1]),
                        float(without[1]),
                        float(kept.mean(0)[1]),
                        float(kept.mean(0)[1] - without[1]),
                        float(kept[:, 3].max()),
                    ]
                )
        rows.append((name, [*(fmean(values) for values in zip(*figures, strict=True)), min(row[4] for row in figures)]))
        caught.append(f"{name} {quarantined} of {len(figures)}")
    columns = ("one expert is", "base", "RED before", "RED without it", "RED", "difference", "worst domain", "smallest")
    show("One bad expert; means over which one it is", columns, rows)
    print(f"\nIn quarantine: {'; '.join(caught)}.")


if __name__ == "__main__":
    try:
        main()
    except RedxError as error:
        raise SystemExit(f"promise: {error}") from error
