"""The tuning grid of the MNIST benchmark: every baseline and every kind of expert, on held-out training images.

Usage: python benchmarks/tune_mnist.py RUN [--seed N ...] [--only WORD]

RUN is a run of `redx run mnist`, whose trained bases are used. 10,000 training images outside the shared subset are
held out from all experts and heads; the figures are accuracies on them. Test is never looked at.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from redx.composition import certificate, noise, rules
from redx.composition.evaluation import certify, noisy_weights, predict, tally
from redx.composition.parts import Parts
from redx.config import BankConfig, BankId, OwnershipConfig, RunConfig
from redx.data.dataset import Data, Split
from redx.io.safetensors_files import read_tensors
from redx.models import encoder
from redx.models.banks import run_bank
from redx.models.base import Base
from redx.models.ownership import OwnershipScorer, false_activation_rate
from redx.seeding import generator
from redx.tasks import get_task
from redx.training import datasets, features
from redx.training.banks import train_bank, train_ownership
from redx.training.datasets import SharedData
from redx.training.router import train_router

HELD_OUT = 10_000
OPTIMISERS = [  # the same grid for everybody
    {"lr": 1e-3, "weight_decay": 1e-2, "dropout": 0.0},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.0},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.3},
    {"lr": 2e-3, "weight_decay": 0.3, "dropout": 0.3},
    {"lr": 5e-3, "weight_decay": 1e-2, "dropout": 0.3},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.3, "epochs": 40},
]
ANCHORED = BankId("residual", "anchored")
ANCHORS = [("truth", 1.0), ("truth", 4.0), ("size", 1.0), ("margin", 1.0), ("margin", 3.0), ("margin", 5.0)]


def change(bank: BankConfig, **settings: Any) -> BankConfig:
    own = {name: settings.pop(name) for name in list(settings) if name in BankConfig.model_fields}
    return bank.model_copy(update={**own, "training": bank.training.model_copy(update=settings)})


def ownerships(config: RunConfig) -> list[OwnershipConfig]:
    """Ways to say when an expert may speak, and prices of it; the same experts each time."""
    chosen = config.ownership
    learned = chosen.bank.model_copy(update={"shape": "mlp", "hidden": 64, "dropout": 0.0})
    ways = (
        {"score": "binary", "contradict": False, "bank": learned},
        {"score": "binary", "contradict": False, "bank": learned.model_copy(update={"hidden": 128, "dropout": 0.3})},
        {"contradict": False},
        {"contradict": False, "bank": chosen.bank.model_copy(update={"anchor_weight": 1.0})},
        {},
    )
    return [chosen.model_copy(update={**way, "alpha": alpha}) for way in ways for alpha in (0.003, 0.001)]


def candidates(config: RunConfig) -> list[tuple[BankId, BankConfig]]:
    """Return all settings to try, by the bank they are for; those of the preset come first."""
    names = ("pooled/linear", "pooled/mlp", "standalone/plain", "standalone/anchored", "residual/plain")
    plain = [(key, change(config.banks[key], **each)) for key in map(BankId.parse, names) for each in OPTIMISERS]
    anchored = config.banks[ANCHORED]
    others = [(ANCHORED, change(anchored, anchor=anchor, anchor_weight=weight)) for anchor, weight in ANCHORS]
    others += [(ANCHORED, change(anchored, smoothing=smoothing)) for smoothing in (0.0, 0.006)]
    others += [(ANCHORED, change(anchored, **each)) for each in OPTIMISERS]
    return [(ANCHORED, anchored), *others, *plain]


class Bench:
    """What one seed needs: the base's features, with 10,000 training images held out."""

    def __init__(self, run: Path, seed: int) -> None:
        self.config, self.seed = get_task("mnist").presets["default"], seed
        data = get_task("mnist").load(self.config, seed)
        self.base = Base.from_tensors(
            read_tensors(run / f"seed-{seed}" / "base.safetensors"), encoder.build_encoder(self.config)
        )
        train = features.embed_split(self.config, self.base, data.train)
        validation = features.embed_split(self.config, self.base, data.validation)
        choose, calibrate = datasets.split_validation(data, self.config.ownership.calibration, seed)
        shared = datasets.shared_rows(data, self.config.base.share, seed)
        rest = torch.ones(len(train), dtype=torch.bool).index_fill(0, shared, False).nonzero()[:, 0]
        held = rest[torch.randperm(len(rest), generator=generator(seed, "held out"))[:HELD_OUT]]
        kept = torch.ones(len(train), dtype=torch.bool).index_fill(0, held, False).nonzero()[:, 0]
        copies = [
            datasets.distorted_copy(data.train.only(shared), seed, number) for number in range(self.config.base.copies)
        ]
        anchors = [train.only(shared), *(features.embed_split(self.config, self.base, copy) for copy in copies)]
        self.train, self.test = train.only(kept), train.only(held)
        self.check, self.calibration = validation.only(choose), validation.only(calibrate)
        everybody = SharedData(datasets.concatenate(anchors), self.calibration)
        self.datasets = datasets.expert_datasets(data.domains, self.train, everybody, self.check)
        self.gates = self._gates(data)
        self.files: dict[str, list[dict[str, torch.Tensor]]] = {}

    def _gates(self, data: Data) -> torch.Tensor:
        router = train_router(self.config.router, data.domains, self.train, self.check, self.seed)
        with torch.no_grad():
            return router(self.test.inputs)

    def active(self, settings: OwnershipConfig) -> torch.Tensor:
        key = settings.model_copy(update={"alpha": 1.0, "contradict": False}).model_dump_json()
        if key not in self.files:  # α and the right to agree are chosen after training
            scoring = settings.model_copy(update={"contradict": False})
            self.files[key] = train_ownership(scoring, self.datasets, self.base, self.seed)
        active = []
        for data, file in zip(self.datasets, self.files[key], strict=True):
            owner = OwnershipScorer(settings, file, self.base)
            owner.calibration = owner.scores(data.calibration.inputs)
            active.append(owner.is_active(self.test.inputs, settings.alpha))
        return torch.stack(active, 1)

    def outputs(self, bank_id: BankId, settings: BankConfig) -> torch.Tensor:
        pooled = [datasets.ExpertData("pooled", self.train, self.train, self.check, self.check)]
        data = pooled if bank_id.form == "pooled" else self.datasets
        bank = train_bank(bank_id, settings, data, self.base, self.seed, 1.0)
        return run_bank(bank, self.test.inputs)

    def figures(self, bank_id: BankId, settings: BankConfig) -> dict[str, float]:
        outputs = self.outputs(bank_id, settings)
        parts = self.parts(outputs)
        if bank_id.form == "pooled":
            return {"global": right("global", parts)}
        if bank_id.form == "standalone":
            return {rule: right(rule, parts) for rule in ("moe", "uniform", "oracle")}
        free = {"base": right("base", parts), "red": right("red", parts), "sum": right("sum", parts)}
        return free | {"any router": worst(parts)} | self.owned(outputs, self.config.ownership)

    def owned(self, outputs: torch.Tensor, settings: OwnershipConfig) -> dict[str, float]:
        active = self.active(settings)
        parts = self.parts(outputs * active[..., None])
        red, names = rules.get_rule("red"), tuple("01234")
        noisy = noisy_weights(red, parts, noise.get_noise("swap"), 1.0, generator(self.seed, "noise", "swap", 1.0))
        return {
            "red owned": right("red", parts),
            "sum owned": right("sum", parts),
            "wrong owned": float((predict(red, parts, noisy) == parts.labels).double().mean()),
            "any router owned": worst(parts),
            "out of turn": float(false_activation_rate(active, parts.domains).mean()),
            "ece base": tally(rules.get_rule("base"), parts, names).compute()["ece"] or 0.0,
            "ece owned": tally(red, parts, names).compute()["ece"] or 0.0,
        }

    def parts(self, outputs: torch.Tensor) -> Parts:
        test: Split = self.test
        gates = self.gates[:, : outputs.shape[1]]
        return Parts(self.base.classify(test.inputs), outputs, gates, test.labels, test.domains)


def right(rule: str, parts: Parts) -> float:
    found = rules.get_rule(rule)
    return float((predict(found, parts, found.weights(parts)) == parts.labels).double().mean())


def worst(parts: Parts) -> float:
    judged = certify(rules.get_rule("red"), parts)
    return certificate.certified_accuracy(judged.radius, judged.predicted == parts.labels, 1.0)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("run", type=Path)
    words.add_argument("--seed", type=int, action="append")
    words.add_argument("--only", default="", help="only what contains this word: a form, a bank or 'ownership'")
    asked = words.parse_args()
    benches = [Bench(asked.run, seed) for seed in asked.seed or [0]]
    config = benches[0].config

    def show(key: str, told: str, found: list[dict[str, float]]) -> None:
        means = (f"{name} {sum(each[name] for each in found) / len(found):.4f}" for name in found[0])
        print(" | ".join(["", key, told, *means, ""]).strip(), flush=True)

    for bank_id, settings in candidates(config):
        if asked.only in str(bank_id):
            show(str(bank_id), describe(settings), [bench.figures(bank_id, settings) for bench in benches])
    if asked.only in "ownership":
        outputs = [bench.outputs(ANCHORED, config.banks[ANCHORED]) for bench in benches]
        for way in ownerships(config):
            only = ", only to contradict" if way.contradict else ""
            text = f"α {way.alpha:g}, {way.score}{only}, {describe(way.bank)}"
            show("ownership", text, [bench.owned(each, way) for bench, each in zip(benches, outputs, strict=True)])


def describe(bank: BankConfig) -> str:
    training = bank.training
    told = f"lr {training.lr:g}, decay {training.weight_decay:g}, dropout {bank.dropout:g}, epochs {training.epochs}"
    told += f", {bank.anchor} {bank.anchor_weight:g}" if bank.anchor != "none" else ""
    return told + (f", smoothing {bank.smoothing:g}" if bank.smoothing else "")


if __name__ == "__main__":
    main()
