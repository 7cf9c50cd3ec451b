"""MNIST in five domains of two digits: {0,1}, {2,3}, {4,5}, {6,7}, {8,9}, with one expert per domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    OwnershipConfig,
    RouterConfig,
    RunConfig,
    StatisticsConfig,
    TrainingConfig,
)
from redx.data.dataset import Data, Split
from redx.data.inputs import read_images
from redx.seeding import generator
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.options import MNIST

if TYPE_CHECKING:
    from torch import Generator, Tensor

DOMAINS = ("0-1", "2-3", "4-5", "6-7", "8-9")
VALIDATION = 6000  # images of the training set that are kept for validation


def load(config: RunConfig, seed: int) -> Data:
    """Return 54,000 images for train, 6,000 for validation and 10,000 for test.

    Train and validation are drawn by seed, stratified by domain. A limit shortens all three splits alike.
    """
    import torch

    from redx.tasks.mnist import download

    folder = download.mnist_folder(Path(config.data_dir) if config.data_dir else None)
    images, labels, test_images, test_labels = download.read_mnist(folder)
    domains = labels // 2
    draw = generator(seed, "mnist", "split")
    by_domain = []
    for domain in range(len(DOMAINS)):
        rows = torch.nonzero(domains == domain)[:, 0]
        by_domain.append(rows[torch.randperm(len(rows), generator=draw)])
    counts = [round(VALIDATION * len(rows) / len(labels)) for rows in by_domain]
    counts[-1] = VALIDATION - sum(counts[:-1])
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for rows, count in zip(by_domain, counts, strict=True):
        held_out[rows[:count]] = True
    every = Split(images, labels, domains)
    train, validation = every.only(torch.nonzero(~held_out)[:, 0]), every.only(torch.nonzero(held_out)[:, 0])
    share = min(1.0, (config.limit or len(train)) / len(train))
    return Data(
        train=shorten(train, share, draw),
        validation=shorten(validation, share, draw),
        test=shorten(Split(test_images, test_labels, test_labels // 2), share, draw),
        domains=DOMAINS,
        classes=tuple(map(str, range(10))),
        split="disjoint",
        seen_in_train=share_seen(test_images, images[~held_out]),
    )


def shorten(split: Split, share: float, draw: Generator) -> Split:
    """Return a random share of a split, in the order of the split."""
    import torch

    if share == 1:
        return split
    return split.only(torch.randperm(len(split), generator=draw)[: round(share * len(split))].sort().values)


def share_seen(test: Tensor, train: Tensor) -> float:
    """Return the share of the test images that also occur in train, byte for byte."""
    known = {image.tobytes() for image in train.numpy()}
    return sum(image.tobytes() in known for image in test.numpy()) / len(test)


def paper_config() -> RunConfig:
    """Return the settings of the papers: a small base, linear corrections to the logits at scale 0.1, no anchors."""
    training = TrainingConfig(epochs=30, lr=1e-3, patience=3, warmup=0, schedule="constant")
    linear = BankConfig(shape="linear", training=training)
    return RunConfig(
        task="mnist",
        preset="paper",
        seeds=(42,),
        backbone="cnn-small",
        threads=2,
        base=BaseConfig(training=training.model_copy(update={"epochs": 2, "patience": None})),
        banks={
            BankId("residual", "plain"): BankConfig(
                shape="linear", scale=0.1, training=training.model_copy(update={"lr": 3e-3})
            ),
            BankId("standalone", "plain"): linear,
            BankId("pooled", "linear"): linear,
        },
        main={"residual": "plain", "standalone": "plain", "pooled": "linear"},
        router=RouterConfig(shape="linear", training=training),
    )


def preset_config(preset: str, backbone: str, base: BaseConfig, epochs: int, risk: float | None = None) -> RunConfig:
    """Return the settings of a preset: the compared banks and pooled heads, with conformal cut-offs.

    The choices are the best of the grid in benchmarks/tune_mnist.py, which docs/results/mnist.md shows.
    """
    training = TrainingConfig(epochs=epochs, batch=256, virtual_batch=256, lr=2e-3, weight_decay=1e-2, warmup=0.1)
    lowrank = BankConfig(shape="lowrank", hidden=64, dropout=0.3, training=training)
    anchored = lowrank.model_copy(update={"anchor": "margin", "anchor_weight": 1.0, "smoothing": 0.003})
    head = BankConfig(shape="mlp", hidden=128, depth=1, training=training.model_copy(update={"lr": 1e-3}))
    linear = BankConfig(shape="linear", dropout=0.3, training=training.model_copy(update={"lr": 5e-3}))
    return RunConfig(
        task="mnist",
        preset=preset,
        backbone=backbone,
        threads=2,
        risk=risk,
        base=base,
        statistics=StatisticsConfig(use=True),
        banks={
            **compared_banks(lowrank, anchored, head, statistics=True),
            BankId("standalone", "linear"): linear,
            BankId("pooled", "linear"): linear,
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=614, depth=1, dropout=0.3, training=training),
        },
        main=MAIN_BANKS,
        ownership=OwnershipConfig(bank=lowrank.model_copy(update={"anchor": "truth", "anchor_weight": 4.0})),
        router=RouterConfig(dropout=0.3, training=training),
    )


STRONG_BASE = BaseConfig(
    augment=True,
    copies=5,
    dropout=0.4,
    training=TrainingConfig(epochs=36, batch=64, virtual_batch=64, lr=3e-3, weight_decay=1e-2, warmup=0.2),
)
TASKS = {
    "mnist": Task(
        "mnist",
        "MNIST in five label-pair domains: experts trained apart, recomposed, certified against any router.",
        {
            # redx run mnist --preset quick: a minute; base 0.96, red at least the base under any router.
            "quick": preset_config("quick", "cnn-small", BaseConfig(training=TrainingConfig(epochs=4)), 3),
            # redx run mnist: under four minutes a seed on two cores; base 0.993, red 0.994, any router 0.992.
            "default": preset_config("default", "cnn", STRONG_BASE, 20, risk=0.001),
            # redx run mnist --preset paper: two minutes; base 0.949, red 0.956, any router 0.09.
            "paper": paper_config(),
        },
        load,
        read_images,
        study="redx.tasks.studies.safety",
        options=MNIST,
        takes={"quick": "about a minute", "default": "about 4 minutes", "paper": "about 2 minutes"},
        downloads="images, 12 MB",
    )
}
