"""What fitting an estimator is made of: parts of the data, domains where there are none, a base, firm cut-offs."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from redx import pretrained, stages, trunks
from redx.base import Base
from redx.config import TrainingConfig
from redx.data.dataset import Split
from redx.library import Expert, Library
from redx.prefix import Prefix
from redx.seeding import generator

NUDGE = 1e-4  # cut-offs lie this much above their score, so that rounding cannot carry an example across


def train_base(training: TrainingConfig, own: Split, hidden: int, classes: int, seed: int) -> Base:
    """A small trunk and the shared classifier, trained on the shared subset, with the bus folded in."""
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator(seed, "base"))))
    encoder = trunks.Mlp(own.inputs.shape[1], hidden, 1, beside=True)
    classifier = nn.Linear(hidden, classes)

    def loss(rows: Tensor) -> Tensor:
        logits = classifier(encoder(own.inputs[rows[0]])[:, :hidden])
        return cross_entropy(logits, own.labels[rows[0]])[None]

    net = nn.ModuleList([encoder, classifier])
    stages.train(training, net, loss, [len(own)], [generator(seed, "batches", "base")], None, f"seed {seed}: base")
    with torch.no_grad():
        return Base.over(encoder, classifier, encoder.eval()(own.inputs))


@functools.lru_cache(maxsize=2)
def read_with(backbone: str) -> Prefix:
    """The lower half of a language model, frozen; what is general about a text is known there."""
    folder = pretrained.folder(backbone)
    depth = Prefix(folder, (0,), "mean").config.num_hidden_layers
    return Prefix(folder, (math.ceil(depth / 2),), "mean")


def nudge(expert: Expert) -> Expert:
    """The same expert with scores of held-out examples a trifle higher, and so its cut-off: it speaks no oftener."""
    tensors = expert.tensors()
    if "ownership.calibration" in tensors:
        scores = tensors["ownership.calibration"]
        tensors["ownership.calibration"] = torch.where(scores.isfinite(), scores + NUDGE * (1 + scores.abs()), scores)
    return Expert(expert.facts, tensors)


def sharpen(library: Library) -> None:
    """Let all experts speak in double precision."""
    for expert in library:
        for key, settings in library.banks.items():
            expert.voice(key, settings, library.base).double()
            if settings.owned:
                expert.owner(library.ownership, library.base).scorer.double()
