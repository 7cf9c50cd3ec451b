"""Experts with classes of their own on CLINC150, against heads that take new classes in closed form.

python benchmarks/new_classes.py --data-dir FOLDER              three seeds, test queries
python benchmarks/new_classes.py --data-dir FOLDER --choose     held-out training queries instead, to choose settings

The base knows seven domains, which have one expert each. Three domains, drawn by the seed, are added one after the
other in every order: each brings an expert with 15 classes that the base has never seen, trained on its own queries and
on the shared subset of the seven. Nothing is trained when an expert is added; the router is `keys`. The opponents are
fitted to all training queries of the domains so far, which is what their closed forms add up to.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import certify, worst_harm
from redx.composition.metrics import exact_interval
from redx.composition.parts import predicted_classes
from redx.composition.rules import compose, get_rule
from redx.config import BankId, RunConfig
from redx.data.dataset import Data, Split
from redx.model.model import Model, ModelInfo
from redx.models.base import Base
from redx.models.classes import extend_base
from redx.models.encoder import build_encoder
from redx.models.expert import Expert
from redx.models.library import build_library
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task
from redx.training import banks
from redx.training.base import train_base
from redx.training.closed_form import PENALTIES, Layer, draw_projection, fit_lda, fit_means
from redx.training.datasets import concatenate, expert_data, expert_datasets, select_anchors, split_validation
from redx.training.experts import train_experts

NEW, RISK, PROJECTION, HELD_OUT = 3, 0.01, 5000, 0.3
RESIDUAL, RISK_BANK = BankId("residual", "anchored"), BankId("residual", "risk")


@dataclass(frozen=True)
class Domain:
    """The features of one domain, with labels that count as in the data of all ten."""

    name: str
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class World:
    """A base that knows seven domains, with an expert of each of the ten."""

    classes: tuple[str, ...]  # of all ten domains
    old: tuple[Domain, ...]
    new: tuple[Domain, ...]
    shared: Split
    model: Model  # with the experts of the old domains
    brought: dict[str, Expert]

    def so_far(self, added: Sequence[str]) -> list[Domain]:
        """Return the old domains and those that were added."""
        return [*self.old, *(domain for domain in self.new if domain.name in added)]


def only_train(data: Data, seed: int) -> Data:
    """Return data whose test split is 30 of every 100 training queries."""
    by_class = [(data.train.labels == label).nonzero()[:, 0] for label in range(len(data.classes))]
    draws = [torch.randperm(len(rows), generator=generator(seed, "choose", i)) for i, rows in enumerate(by_class)]
    rows = torch.stack([own[draw] for own, draw in zip(by_class, draws, strict=True)])
    cut = round((1 - HELD_OUT) * rows.shape[1])
    train, test = data.train.only(rows[:, :cut].flatten().sort().values), data.train.only(rows[:, cut:].flatten())
    return Data(train, data.validation, test, data.domains, data.classes, data.split, data.seen_in_train)


def restrict(split: Split, domains: Sequence[int], classes: Tensor) -> Split:
    """Return the examples of these domains; labels count in `classes`, domains in `domains`."""
    rows = torch.isin(split.domains, torch.tensor(domains)).nonzero()[:, 0]
    index = torch.tensor([domains.index(domain) for domain in split.domains[rows].tolist()])
    return Split(split.inputs[rows], torch.searchsorted(classes, split.labels[rows]), index)


def make_world(data: Data, config: RunConfig, seed: int) -> World:
    """Train base and experts; no expert sees queries of another new domain."""
    order = torch.randperm(len(data.domains), generator=generator(seed, "new domains")).tolist()
    new, old = sorted(order[:NEW]), sorted(order[NEW:])
    own = torch.isin(torch.tensor(data.domain_of_classes()), torch.tensor(old))
    known = own.nonzero()[:, 0]
    splits = {name: restrict(getattr(data, name), old, known) for name in ("train", "validation", "test")}
    names = tuple(data.classes[label] for label in known.tolist())
    domains = tuple(data.domains[index] for index in old)
    less = Data(splits["train"], splits["validation"], splits["test"], domains, names, "", 0.0)
    base = train_base(config, less, seed)

    def embed(split: Split) -> Split:
        return Split(base.embed(split.inputs), split.labels, split.domains)

    shared = embed(select_anchors(less, config, seed))
    choices, held = split_validation(less, config.ownership.calibration, seed)
    calibration = embed(less.validation.only(held))
    datasets = expert_datasets(less.domains, embed(less.train), shared, embed(less.validation.only(choices)))
    experts = train_experts(config, datasets, base, seed, 1.0, names, {}, shared=shared)
    whole = {name: embed(getattr(data, name)) for name in ("train", "validation", "test")}

    def domain(index: int) -> Domain:
        return Domain(
            data.domains[index], *(split.only((split.domains == index).nonzero()[:, 0]) for split in whole.values())
        )

    added = [domain(index) for index in new]
    brought = {one.name: train_new_expert(config, one, data.classes, names, base, shared, seed) for one in added}
    library = build_library({one.name: one for one in experts}, base, config, dict, names)
    info = ModelInfo(less.domains, names, tuple(less.domain_of_classes()))
    model = Model.assemble(info, config, lambda x: x, base, library, None, calibration_set=lambda: calibration)
    for_choices = embed(less.validation.only(choices))
    model.use_examples(shared=lambda: shared, choices=lambda: for_choices)
    return World(data.classes, tuple(domain(index) for index in old), tuple(added), shared, model, brought)


def train_new_expert(
    config: RunConfig,
    domain: Domain,
    every: Sequence[str],
    known: Sequence[str],
    base: Base,
    shared: Split,
    seed: int,
) -> Expert:
    """Train an expert of a domain whose classes are all new."""
    labels = domain.train.labels.unique()  # ascending, as the model orders new classes
    own, held = (
        Split(split.inputs, len(known) + torch.searchsorted(labels, split.labels), torch.full_like(split.labels, -1))
        for split in (domain.train, domain.validation)
    )
    brought: list[int] = labels.tolist()
    classes = (*known, *(every[label] for label in brought))
    dataset = expert_data(domain.name, own, held, shared, ())
    extended = extend_base(base, len(labels))
    (expert,) = train_experts(config, [dataset], extended, seed, 1.0, classes, {}, shared=shared)
    return expert


def measure_red(world: World, added: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the model with these experts added."""
    model = world.model
    for name in added:
        model.experts.add(world.brought[name], unverified=True)
    classes = {label: index for index, label in enumerate(model.classes)}
    column = torch.tensor([classes.get(label, -1) for label in world.classes])
    figures: dict[str, Any] = {}
    tests = {
        name: concatenate([domain.test for domain in domains])
        for name, domains in {"old": world.old, "new": world.so_far(added)[len(world.old) :]}.items()
        if domains
    }
    right: dict[str, list[Tensor]] = {}
    for part, test in tests.items():
        labels = column[test.labels]
        outputs = model.parts_of(test.inputs, RISK_BANK, labels, torch.full_like(labels, -1))
        answers = {"base": predicted_classes(outputs.base)}
        for name in ("red", "sum"):
            certified = certify(get_rule(name), outputs)
            answers[name] = certified.predicted
            if part == "old":
                harmed = worst_harm(outputs, certified)
                figures[f"harm {name}"] = float(harmed.double().mean())
                figures[f"interval {name}"] = exact_interval(int(harmed.sum()), len(harmed))
        free = model.parts_of(test.inputs, RESIDUAL, labels, torch.full_like(labels, -1))
        answers["red, no cut-off"] = certify(get_rule("red"), free).predicted
        for name, answer in answers.items():
            right.setdefault(name, []).append((answer == labels).double())
            figures[f"{part} {name}"] = float((answer == labels).double().mean())
    figures |= {f"all {name}": float(torch.cat(rows).mean()) for name, rows in right.items()}
    for name in added:
        model.experts.remove(name)
    return figures


class GrowingRidge:
    """Random-projection ridge whose sums are kept by domain, so that a domain is added without its old examples."""

    def __init__(self, domains: Sequence[Domain], classes: int, seed: int) -> None:
        width = domains[0].train.inputs.shape[1]
        self.projection = draw_projection(width, PROJECTION, generator(seed, "projection"))
        self.sums: dict[str, tuple[Tensor, Tensor]] = {}
        for domain in domains:
            hidden = self.features(domain.train.inputs)  # (N, M)
            targets = torch.nn.functional.one_hot(domain.train.labels, classes).double()
            self.sums[domain.name] = hidden.T @ hidden, hidden.double().T @ targets
        self.place = len(PENALTIES) // 2  # the penalty that was best so far

    def features(self, x: Tensor) -> Tensor:
        """Return the random features of inputs, (N, E) to (N, M)."""
        return torch.relu(x @ self.projection)

    def solve(self, domains: Sequence[Domain], present: Tensor) -> Layer:
        """Return the head of these domains; the penalty is sought from the last one upwards and downwards."""
        gram, right = torch.zeros(PROJECTION, PROJECTION).double(), torch.zeros(PROJECTION, len(present)).double()
        for domain in domains:
            gram += self.sums[domain.name][0]
            right += self.sums[domain.name][1][:, present]
        unit = float(gram.diagonal().mean())
        held = concatenate([domain.validation for domain in domains])
        hidden, labels = self.features(held.inputs).double(), torch.searchsorted(present, held.labels)
        tried: dict[int, tuple[float, Tensor]] = {}

        def accuracy(place: int) -> float:
            if not 0 <= place < len(PENALTIES):
                return -1.0
            if place not in tried:
                shifted = gram.clone()
                shifted.diagonal().add_(PENALTIES[place] * unit)
                weight = torch.cholesky_solve(right, torch.linalg.cholesky(shifted))
                tried[place] = float(((hidden @ weight).argmax(-1) == labels).double().mean()), weight
            return tried[place][0]

        while (best := max((self.place, self.place - 1, self.place + 1), key=accuracy)) != self.place:
            self.place = best
        return tried[self.place][1], torch.zeros(len(present)).double()


def measure_opponents(world: World, ridge: GrowingRidge, added: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy of the heads in closed form, fitted to all queries so far and chosen on validation."""
    domains = world.so_far(added)
    train, held = (concatenate([getattr(domain, name) for domain in domains]) for name in ("train", "validation"))
    present = train.labels.unique()
    train, held = (
        Split(split.inputs, torch.searchsorted(present, split.labels), split.domains) for split in (train, held)
    )
    heads = {
        "nearest mean": fit_means(train, held),
        "RanPAC ridge": ridge.solve(domains, present),
        "shrinkage LDA": fit_lda(train),
    }
    figures = {}
    for name, (weight, bias) in heads.items():
        right = {}
        for part, chosen in {"old": world.old, "new": domains[len(world.old) :]}.items():
            if chosen:
                test = concatenate([domain.test for domain in chosen])
                x = ridge.features(test.inputs) if name == "RanPAC ridge" else test.inputs
                answers = (x.double() @ weight + bias).argmax(-1)
                right[part] = (answers == torch.searchsorted(present, test.labels)).double()
                figures[f"{part} {name}"] = float(right[part].mean())
        figures[f"all {name}"] = float(torch.cat(list(right.values())).mean())
    return figures


def check_removal(world: World) -> bool:
    """Return whether every order of adding gives the same logits, and removal the old ones, bit for bit."""
    model, test = world.model, concatenate([domain.test for domain in (*world.old, *world.new)])
    unknown = torch.full_like(test.labels, -1)

    def scores() -> Tensor:
        parts = model.parts_of(test.inputs, RISK_BANK, unknown, unknown)
        return compose(get_rule("red"), parts, get_rule("red").weights(parts))

    tensors = {(expert.name, key): value.clone() for expert in model.experts for key, value in expert.tensors().items()}
    before, whole, same = scores(), None, True
    for order in itertools.permutations(world.brought):
        for name in order:
            model.experts.add(world.brought[name], unverified=True)
        now = scores()
        same &= whole is None or torch.equal(whole, now)
        whole = now
        for name in order:
            model.experts.remove(name)
        same &= torch.equal(scores(), before)
    return same and all(
        torch.equal(value, model.experts[name].tensors()[key]) for (name, key), value in tensors.items()
    )


def measure_seed(seed: int, data_dir: Path | None, choose: bool) -> list[dict[str, Any]]:
    """Return the figures of every set of added domains; print what every order of adding gives."""
    config = configure("intents", data_dir=str(data_dir) if data_dir else None, risk=RISK)
    kept = {bank_id: config.banks[bank_id] for bank_id in (RESIDUAL, RISK_BANK)}
    config = config.model_copy(update={"banks": kept, "main": {"residual": "risk"}, "average": False})
    data = get_task("intents").load(config, seed)
    build_encoder(config).prepare([getattr(data, name).inputs for name in ("train", "validation", "test")])
    world = make_world(only_train(data, seed) if choose else data, config, seed)
    print(f"seed {seed}: {', '.join(world.brought)} are added", flush=True)
    ridge = GrowingRidge([*world.old, *world.new], len(data.classes), seed)
    subsets = [added for count in range(NEW + 1) for added in itertools.combinations(world.brought, count)]
    figures = {}
    for added in subsets:
        figures[added] = measure_red(world, added) | measure_opponents(world, ridge, added)
        shown = {name: figures[added][f"all {name}"] for name in ("red", "sum", "RanPAC ridge")}
        shown["harm"] = figures[added]["harm red"]
        words = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        print(f"  {' + '.join(added) or 'nothing added'}: {words}", flush=True)
    for order in itertools.permutations(world.brought):
        path = [figures[tuple(name for name in world.brought if name in order[:count])] for count in range(NEW + 1)]
        for name in ("red", "sum"):
            values = ", ".join(f"{one[f'all {name}']:.4f}" for one in path)
            print(f"  {name}, {' > '.join(order)}: {values}", flush=True)
    restored = check_removal(world)
    print(f"  every order and every removal agree bit for bit: {restored}", flush=True)
    return [{"seed": seed, "added": added, "restored": restored, **one} for added, one in figures.items()]


def print_table(kept: list[dict[str, Any]]) -> None:
    """Print every figure by the number of added domains, as the mean over seeds and orders."""
    print(f"\n{'':24}" + "".join(f"{f'{count} added':<11}" for count in range(NEW + 1)) + "mean of 1 to 3 added")
    for name in sorted({name for one in kept for name, value in one.items() if isinstance(value, float)}):
        by_step = [
            [one[name] for one in kept if len(one["added"]) == count and name in one] for count in range(NEW + 1)
        ]
        cells = "".join(f"{fmean(values):<11.4f}" if values else f"{'':11}" for values in by_step)
        print(f"{name:24}{cells}{fmean(fmean(values) for values in by_step[1:]):.4f}")


def main() -> None:
    """Measure every seed, or read figures that were measured before, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of CLINC150; by default as `redx run intents`")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; by default 0, 1 and 2")
    parser.add_argument("--choose", action="store_true", help="measure on held-out training queries")
    parser.add_argument(
        "--weight", type=float, default=banks.NEW_CLASS_WEIGHT, help="weight that experts are trained at"
    )
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--read", type=Path, action="append", help="read the figures from such a file; repeatable")
    options = parser.parse_args()
    torch.set_num_threads(1)
    banks.NEW_CLASS_WEIGHT = options.weight
    if options.read:
        kept = [one for file in options.read for one in json.loads(file.read_text())]
    else:
        seeds = options.seed or [0, 1, 2]
        kept = [one for seed in seeds for one in measure_seed(seed, options.data_dir, options.choose)]
    print_table(kept)
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
