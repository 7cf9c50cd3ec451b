"""What fitting an estimator is made of: parts of the data, domains where there are none, a base, firm cut-offs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from redx import stages
from redx.config import TrainingConfig
from redx.data.dataset import Split
from redx.models import trunks
from redx.models.base import Base
from redx.seeding import generator


def train_base(training: TrainingConfig, own: Split, hidden: int, classes: int, seed: int) -> Base:
    """A small trunk and the shared classifier, trained on the shared subset, with the bus folded in."""
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator(seed, "base"))))
    encoder = trunks.MLPTrunk(own.inputs.shape[1], hidden, 1, beside=True)
    classifier = nn.Linear(hidden, classes)

    def loss(rows: Tensor) -> Tensor:
        logits = classifier(encoder(own.inputs[rows[0]])[:, :hidden])
        return cross_entropy(logits, own.labels[rows[0]])[None]

    net = nn.ModuleList([encoder, classifier])
    stages.train(training, net, loss, [len(own)], [generator(seed, "batches", "base")], None, f"seed {seed}: base")
    with torch.no_grad():
        return Base.over(encoder, classifier, encoder.eval()(own.inputs))
