"""The tuning grid of the MNIST benchmark: every baseline and every kind of expert, on held-out training images.

Usage: python benchmarks/tune_mnist.py RUN [--seed N ...] [--only WORD]

RUN is a run of `redx run mnist`, whose trained bases are used. 10,000 training images outside the shared subset are
held out from all experts and heads; the figures are accuracies on them. Test is never looked at.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from redx import certify, compose, experts, lessons, noise, stages, store
from redx.config import Bank, Config
from redx.evaluate import answer, judge, measure, weigh
from redx.model import Base, Owners
from redx.records import Data, Parts, Split
from redx.routers import Router
from redx.seeding import generator
from redx.tasks import task

HELD_OUT = 10_000
OPTIMISERS = [  # the same grid for everybody
    {"lr": 1e-3, "weight_decay": 1e-2, "dropout": 0.0},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.0},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.3},
    {"lr": 2e-3, "weight_decay": 0.3, "dropout": 0.3},
    {"lr": 5e-3, "weight_decay": 1e-2, "dropout": 0.3},
    {"lr": 2e-3, "weight_decay": 1e-2, "dropout": 0.3, "epochs": 40},
]
ANCHORS = [("truth", 1.0), ("truth", 4.0), ("size", 1.0), ("margin", 1.0), ("margin", 3.0), ("margin", 5.0)]


def change(bank: Bank, **settings: Any) -> Bank:
    own = {name: settings.pop(name) for name in list(settings) if name in Bank.model_fields}
    return bank.model_copy(update={**own, "training": bank.training.model_copy(update=settings)})


def candidates(config: Config) -> list[tuple[str, Bank]]:
    """All settings to try, by the bank they are for; what the preset has comes first."""
    keys = ("pooled/linear", "pooled/mlp", "standalone/plain", "standalone/anchored", "residual/plain")
    found = [(key, change(config.banks[key], **each)) for key in keys for each in OPTIMISERS]
    key = "residual/anchored"
    anchored = config.banks[key]
    others = [(key, change(anchored, anchor=anchor, anchor_weight=weight)) for anchor, weight in ANCHORS]
    others += [(key, change(anchored, smoothing=smoothing)) for smoothing in (0.0, 0.006)]
    return [(key, anchored), *others, *((key, change(anchored, **each)) for each in OPTIMISERS), *found]


class Bench:
    """What one seed needs: the base's features, with 10,000 training images held out."""

    def __init__(self, run: Path, seed: int) -> None:
        self.config, self.seed = task("mnist").presets["default"], seed
        data = task("mnist").load(self.config, seed)
        self.base = Base.of(store.read_tensors(run / f"seed-{seed}" / "base.safetensors"), self.config.backbone)
        train = stages.embed(self.config, self.base, data.train)
        validation = stages.embed(self.config, self.base, data.validation)
        choose, calibrate = lessons.halve(data, self.config.ownership.calibration, seed)
        shared = lessons.share(data, self.config.base.share, seed)
        rest = torch.ones(len(train), dtype=torch.bool).index_fill(0, shared, False).nonzero()[:, 0]
        held = rest[torch.randperm(len(rest), generator=generator(seed, "held out"))[:HELD_OUT]]
        kept = torch.ones(len(train), dtype=torch.bool).index_fill(0, held, False).nonzero()[:, 0]
        copies = [lessons.copy(data.train.only(shared), seed, number) for number in range(self.config.base.copies)]
        anchors = [train.only(shared), *(stages.embed(self.config, self.base, copy) for copy in copies)]
        self.train, self.test = train.only(kept), train.only(held)
        self.check, self.calibration = validation.only(choose), validation.only(calibrate)
        self.lessons = lessons.teach(data, self.train, lessons.pool(anchors), self.check)
        self.gates = self._gates(data)
        self.spoken = self._spoken()

    def _gates(self, data: Data) -> torch.Tensor:
        tensors = stages.train_router(self.config, data, self.train, self.check, self.seed)
        router = Router(self.base.width, len(data.domains), self.config.router.shape, self.config.router.hidden)
        router.load_state_dict(tensors)
        with torch.no_grad():
            return router(self.test.inputs)

    def _spoken(self) -> torch.Tensor:
        files = stages.train_ownership(self.config.ownership, self.lessons, self.calibration, self.base, self.seed)
        return Owners.of(self.config.ownership, files, self.base).speaks(self.test.inputs)

    def figures(self, key: str, settings: Bank) -> dict[str, float]:
        pooled = key.startswith("pooled")
        taught = [lessons.Lesson("pooled", self.train, self.train, self.check)] if pooled else self.lessons
        bank = stages.train_bank(key, settings, taught, self.base, self.seed, 1.0)
        said = experts.speak(bank, self.test.inputs)
        parts = self.parts(said)
        if pooled:
            return {"accuracy": right("global", parts)}
        if key.startswith("standalone"):
            return {"moe": right("moe", parts), "uniform": right("uniform", parts), "oracle": right("oracle", parts)}
        owned = self.parts(said * self.spoken[..., None])
        red, swap = compose.rule("red"), noise.kind("swap")
        noisy = weigh(red, owned, swap, 1.0, generator(self.seed, "noise", "swap", 1.0))
        return {
            "base": right("base", parts),
            "red": right("red", parts),
            "sum": right("sum", parts),
            "worst": worst(parts),
            "red owned": right("red", owned),
            "sum owned": right("sum", owned),
            "swap owned": float((answer(red, owned, noisy) == owned.labels).double().mean()),
            "worst owned": worst(owned),
            "ece base": measure(compose.rule("base"), owned, tuple("01234")).compute()["ece"] or 0.0,
            "ece owned": measure(red, owned, tuple("01234")).compute()["ece"] or 0.0,
        }

    def parts(self, said: torch.Tensor) -> Parts:
        test: Split = self.test
        gates = self.gates[:, : said.shape[1]]
        return Parts(self.base.classify(test.inputs), said, gates, test.labels, test.domains)


def right(rule: str, parts: Parts) -> float:
    found = compose.rule(rule)
    return float((answer(found, parts, found.weights(parts)) == parts.labels).double().mean())


def worst(parts: Parts) -> float:
    judged = judge(compose.rule("red"), parts)
    return certify.certified(judged.radius, judged.predicted == parts.labels, 1.0)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("run", type=Path)
    words.add_argument("--seed", type=int, action="append")
    words.add_argument("--only", default="", help="only banks whose name contains this word")
    asked = words.parse_args()
    benches = [Bench(asked.run, seed) for seed in asked.seed or [0]]
    for key, settings in candidates(benches[0].config):
        if asked.only not in key:
            continue
        found = [bench.figures(key, settings) for bench in benches]
        mean = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
        training = settings.training
        told = f"lr {training.lr:g}, decay {training.weight_decay:g}, dropout {settings.dropout:g}"
        told += f", epochs {training.epochs}"
        told += f", {settings.anchor} {settings.anchor_weight:g}" if settings.anchor != "none" else ""
        told += f", smoothing {settings.smoothing:g}" if settings.smoothing else ""
        told += " | ".join(["", *(f"{name} {value:.4f}" for name, value in mean.items())])
        print(f"| {key} | {told} |", flush=True)


if __name__ == "__main__":
    main()
