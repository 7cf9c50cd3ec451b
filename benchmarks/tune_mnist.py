"""The tuning grid of the MNIST benchmark: every baseline and every kind of expert, on held-out training images.

Usage: python benchmarks/tune_mnist.py RUN [--seed N ...] [--only WORD]

RUN is a run of `redx run mnist`, whose trained bases are used. 10,000 training images outside the shared subset are
held out from all experts and heads; the figures are accuracies on them. Test is never looked at.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from redx.composition import certificate, rules
from redx.composition.evaluation import certify, predict
from redx.composition.parts import Parts
from redx.config import BankConfig, BankId, RunConfig
from redx.data.dataset import Data, Split
from redx.io.safetensors_files import read_tensors
from redx.models import encoder
from redx.models.banks import run_bank
from redx.models.base import Base
from redx.seeding import generator
from redx.tasks import get_task
from redx.training import datasets, features
from redx.training.banks import train_bank
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
        everybody = datasets.concatenate(anchors)
        self.datasets = datasets.expert_datasets(data.domains, self.train, everybody, self.check)
        self.gates = self._gates(data)

    def _gates(self, data: Data) -> torch.Tensor:
        router = train_router(self.config.router, data.domains, self.train, self.check, self.seed)
        with torch.no_grad():
            return router(self.test.inputs)

    def outputs(self, bank_id: BankId, settings: BankConfig) -> torch.Tensor:
        pooled = [datasets.ExpertData("pooled", self.train, self.train, self.check)]
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
        return free | {"any router": worst(parts)}

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
    words.add_argument("--only", default="", help="only what contains this word: a form or a bank")
    asked = words.parse_args()
    benches = [Bench(asked.run, seed) for seed in asked.seed or [0]]
    config = benches[0].config

    def show(key: str, told: str, found: list[dict[str, float]]) -> None:
        means = (f"{name} {sum(each[name] for each in found) / len(found):.4f}" for name in found[0])
        print(" | ".join(["", key, told, *means, ""]).strip(), flush=True)

    for bank_id, settings in candidates(config):
        if asked.only in str(bank_id):
            show(str(bank_id), describe(settings), [bench.figures(bank_id, settings) for bench in benches])


def describe(bank: BankConfig) -> str:
    training = bank.training
    told = f"lr {training.lr:g}, decay {training.weight_decay:g}, dropout {bank.dropout:g}, epochs {training.epochs}"
    told += f", {bank.anchor} {bank.anchor_weight:g}" if bank.anchor != "none" else ""
    return told + (f", smoothing {bank.smoothing:g}" if bank.smoothing else "")


if __name__ == "__main__":
    main()
