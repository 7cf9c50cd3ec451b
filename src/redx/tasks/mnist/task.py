"""MNIST in five label-pair domains: {0,1}, {2,3}, {4,5}, {6,7}, {8,9}, an expert each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.config import BankConfig, BankId, BaseConfig, OwnershipConfig, RouterConfig, RunConfig, TrainingConfig
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.seeding import generator
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.mnist import download
from redx.tasks.options import MNIST

if TYPE_CHECKING:
    from torch import Generator, Tensor

DOMAINS = ("0-1", "2-3", "4-5", "6-7", "8-9")
VALIDATION = 6000


def load(config: RunConfig, seed: int) -> Data:
    """54,000 / 6,000 / 10,000 images; the first two by seed, stratified by domain; a limit shortens all three alike."""
    import torch

    folder = download.mnist_folder(Path(config.data_dir) if config.data_dir else None)
    images, labels, test_images, test_labels = download.read_mnist(folder)
    domains = labels // 2
    draw = generator(seed, "mnist", "split")
    held = []
    for domain in range(len(DOMAINS)):
        rows = torch.nonzero(domains == domain)[:, 0]
        held.append(rows[torch.randperm(len(rows), generator=draw)])
    counts = [round(VALIDATION * len(rows) / len(labels)) for rows in held]
    counts[-1] = VALIDATION - sum(counts[:-1])
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for rows, count in zip(held, counts, strict=True):
        chosen[rows[:count]] = True
    every = Split(images, labels, domains)
    train, validation = every.only(torch.nonzero(~chosen)[:, 0]), every.only(torch.nonzero(chosen)[:, 0])
    part = min(1.0, (config.limit or len(train)) / len(train))
    return Data(
        train=shorten(train, part, draw),
        validation=shorten(validation, part, draw),
        test=shorten(Split(test_images, test_labels, test_labels // 2), part, draw),
        domains=DOMAINS,
        classes=tuple(map(str, range(10))),
        split="disjoint",
        seen_in_train=share_seen(test_images, images[~chosen]),
    )


def shorten(split: Split, part: float, draw: Generator) -> Split:
    """A random part of a split."""
    import torch

    if part == 1:
        return split
    return split.only(torch.randperm(len(split), generator=draw)[: round(part * len(split))].sort().values)


def share_seen(test: Tensor, train: Tensor) -> float:
    """The share of test images that stand in train byte for byte."""
    known = {image.tobytes() for image in train.numpy()}
    return sum(image.tobytes() in known for image in test.numpy()) / len(test)


def read(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Grey images of 28 × 28 with values 0 to 255: (N, 28, 28)."""
    import torch

    try:
        images = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedxError("MNIST reads images of 28 × 28 with values 0 to 255; give an array (N, 28, 28).") from error
    if images.ndim != 3 or tuple(images.shape[1:]) != (28, 28):
        raise RedxError(f"MNIST reads images of shape (N, 28, 28), not {tuple(images.shape)}; reshape them.")
    return images


def paper() -> RunConfig:
    """The papers' own recipe: a small base, linear corrections to the logits at scale 0.1, no anchors."""
    training = TrainingConfig(epochs=30, lr=1e-3, patience=3, warmup=0, schedule="constant")
    linear = BankConfig(shape="linear", training=training)
    return RunConfig(
        task="mnist",
        preset="paper",
        seeds=(42,),
        backbone="cnn-small",
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


def settings(preset: str, backbone: str, base: BaseConfig, epochs: int) -> RunConfig:
    """Banks plain and anchored, the anchored one also with conformal ownership, and pooled heads.

    The choices are the best of the grid in benchmarks/tune_mnist.py, which docs/mnist.md shows.
    """
    training = TrainingConfig(epochs=epochs, batch=256, virtual_batch=256, lr=2e-3, weight_decay=1e-2, warmup=0.1)
    corrected = BankConfig(shape="lowrank", hidden=64, dropout=0.3, training=training)
    anchored = corrected.model_copy(update={"anchor": "margin", "anchor_weight": 1.0, "smoothing": 0.003})
    head = BankConfig(shape="mlp", hidden=128, depth=1, training=training.model_copy(update={"lr": 1e-3}))
    linear = BankConfig(shape="linear", dropout=0.3, training=training.model_copy(update={"lr": 5e-3}))
    return RunConfig(
        task="mnist",
        preset=preset,
        backbone=backbone,
        base=base,
        banks={
            **compared_banks(corrected, anchored, head),
            BankId("standalone", "linear"): linear,
            BankId("pooled", "linear"): linear,
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=614, depth=1, dropout=0.3, training=training),
        },
        main=MAIN_BANKS,
        ownership=OwnershipConfig(
            contradict=True, bank=corrected.model_copy(update={"anchor": "truth", "anchor_weight": 4.0})
        ),
        router=RouterConfig(dropout=0.3, training=training),
    )


strong = BaseConfig(
    augment=True,
    copies=5,
    dropout=0.4,
    training=TrainingConfig(epochs=36, batch=64, virtual_batch=64, lr=3e-3, weight_decay=1e-2, warmup=0.2),
)
TASKS = {
    "mnist": Task(
        "mnist",
        "MNIST in five label-pair domains: experts trained apart, recomposed, proven against any router.",
        {
            # redx run mnist --preset quick: a minute; base 0.96, red at least the base under any router.
            "quick": settings("quick", "cnn-small", BaseConfig(training=TrainingConfig(epochs=4)), 3),
            # redx run mnist: under four minutes a seed on two cores; base 0.993, red 0.994, any router 0.992.
            "default": settings("default", "cnn", strong, 20),
            # redx run mnist --preset paper: two minutes; base 0.949, red 0.956, any router 0.09.
            "paper": paper(),
        },
        load,
        read,
        study="redx.tasks.studies.safety",
        options=MNIST,
    )
}
