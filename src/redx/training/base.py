"""What fitting an estimator is made of: parts of the data, domains where there are none, a base, firm cut-offs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from redx.config import RunConfig, TrainingConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.models import trunks
from redx.models.base import Base
from redx.models.encoder import TextEncoder, build_encoder
from redx.models.trunks import SPAN, TokenSum
from redx.seeding import generator
from redx.training import loop
from redx.training.datasets import BATCH, shared_rows, split_validation
from redx.training.loop import train


def train_small_base(training: TrainingConfig, own: Split, hidden: int, classes: int, seed: int) -> Base:
    """A small trunk and the shared classifier, trained on the shared subset, with the bus folded in."""
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator(seed, "base"))))
    encoder = trunks.MLPTrunk(own.inputs.shape[1], hidden, 1, beside=True)
    classifier = nn.Linear(hidden, classes)

    def loss(rows: Tensor) -> Tensor:
        logits = classifier(encoder(own.inputs[rows[0]])[:, :hidden])
        return cross_entropy(logits, own.labels[rows[0]])[None]

    net = nn.ModuleList([encoder, classifier])
    loop.train(training, net, loss, [len(own)], [generator(seed, "batches", "base")], None, f"seed {seed}: base")
    with torch.no_grad():
        return Base.over(encoder, classifier, encoder.eval()(own.inputs))


def train_base(config: RunConfig, data: Data, seed: int) -> dict[str, Tensor]:
    """The base: given by the task, or encoder and classifier trained on the shared subset."""
    if data.given_base is not None:
        weight, bias = data.given_base
        return Base(nn.Identity(), weight, bias, torch.zeros(len(weight)), torch.ones(len(weight))).tensors()
    own = data.train.only(shared_rows(data, config.base.share, seed, config.base.least))
    check = data.validation.only(split_validation(data, config.ownership.calibration, seed)[0])
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator(seed, "base"))))
    encoder = build_encoder(config)
    own, check = (_encode_split(encoder, split) for split in (own, check))
    if isinstance(encoder, TextEncoder):
        encoder.trunk.fit(own.inputs)
    width = cast(int, encoder.width)  # D; what the encoder gives beyond it is for the experts alone
    classifier = nn.Linear(width, data.outputs).to(config.device)
    encoder.to(config.device)
    hide = nn.Dropout(config.base.dropout)
    net = nn.ModuleList([encoder, classifier, hide])
    trunk = encoder.trunk if config.base.teach == "value" and isinstance(encoder, TextEncoder) else None
    values = place_classes(trunk, classifier) if isinstance(trunk, TokenSum) else torch.empty(0)

    def answer(images: Tensor) -> Tensor:
        return classifier(hide(encoder(images.to(config.device))[:, :width]))

    draw = generator(seed, "augmentation")

    def loss(rows: Tensor) -> Tensor:
        images = own.inputs[rows[0]]
        images = distort(images, draw) if config.base.augment else images
        labels = own.labels[rows[0]].to(config.device)
        if isinstance(trunk, TokenSum):
            return mse_loss(trunk.value(trunk.sum(images))[:, 0], values[labels])[None]
        return cross_entropy(answer(images), labels, label_smoothing=config.base.smoothing)[None]

    def score(_: int) -> float:
        net.eval()
        with torch.no_grad():
            right = [answer(x).argmax(-1).cpu() == y for x, y in _batches(check)]
        net.train()
        return float(torch.cat(right).double().mean())

    train(
        config.base.training,
        trunk or net,
        loss,
        [len(own)],
        [generator(seed, "batches", "base")],
        score,
        f"seed {seed}: base",
    )
    net.cpu().eval()
    with torch.no_grad():
        seen = torch.cat([encoder(x) for x in own.inputs.split(BATCH)])  # (N, E)
    return Base.over(encoder, classifier, seen).tensors()


def place_classes(trunk: TokenSum, classifier: nn.Linear) -> Tensor:
    """Let each class of the classifier stand at its own value, in order, for good; gives the values, (C,)."""
    count = classifier.out_features
    values = (torch.arange(count) - (count - 1) / 2) * (SPAN / count)
    classifier.weight.data = 2 * trunk.code(values)
    classifier.bias.data.zero_()
    return values


def _encode_split(encoder: nn.Module, split: Split) -> Split:
    """A split as the trained part of the encoder reads it."""
    inputs = encoder.read(split.inputs) if isinstance(encoder, TextEncoder) else split.inputs
    return Split(inputs, split.labels, split.domains)


def _batches(split: Split) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(split.inputs.split(BATCH), split.labels.split(BATCH), strict=True)
