"""What fitting an estimator is made of: parts of the data, domains where there are none, a base, firm cut-offs."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from redx import clusters, pretrained, stages, trunks
from redx.base import Base
from redx.config import Training
from redx.library import Expert, Library
from redx.prefix import Prefix
from redx.records import Split
from redx.seeding import generator

LIMIT = 10.0  # standard deviations: a feature that hardly moved in the shared subset may leap elsewhere
CLUSTER = 10  # examples of a cluster at least, where there are enough
NUDGE = 1e-4  # cut-offs lie this much above their score, so that rounding cannot carry an example across


def draw_part(cells: np.ndarray, part: float, least: int, draw: torch.Generator) -> np.ndarray:
    """Which examples belong to this part of every cell: at least so many of each, and (least 0) never all of one."""
    chosen = np.zeros(len(cells), bool)
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        count = min(max(least, round(part * len(rows))), len(rows) - 1 + least)
        chosen[rows[torch.randperm(len(rows), generator=draw).numpy()[:count]]] = True
    return chosen


def cluster(raw: np.ndarray, seen: np.ndarray, labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Domains for data without any: clusters of what is not held out; where all is alike, the classes.

    What is held out joins the nearest cluster, as new examples would, so that cut-offs keep their promise.
    """
    spread = raw[seen].std(0)
    x = torch.from_numpy(((raw - raw[seen].mean(0)) / np.where(spread > 0, spread, 1.0)).clip(-LIMIT, LIMIT))
    known = x[torch.from_numpy(seen)]
    least = max(1, min(CLUSTER, len(known) // (2 * count)))
    found = clusters.find(known, min(count, len(known) // least), least, generator(seed, "clusters"))
    centres = torch.stack([known[found == place].mean(0) for place in range(int(found.max()) + 1)])
    places = torch.cdist(x, centres).argmin(1)
    places[torch.from_numpy(seen)] = found
    return places.numpy() if len(centres) > 1 else labels


def apart(places: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every class belongs to one domain alone."""
    return len(set(zip(places.tolist(), labels.tolist(), strict=True))) == len(set(labels.tolist()))


def train_base(training: Training, own: Split, hidden: int, classes: int, seed: int) -> Base:
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
