"""Domains where nobody named any: k-means with careful seeding (k-means++), drawn from a generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from redx.errors import RedxError
from redx.seeding import generator

if TYPE_CHECKING:
    from torch import Generator, Tensor


ROUNDS = 50  # of moving the centres


STARTS = 4  # the best of so many is taken


def choose_count(examples: int) -> int:
    """How many clusters for so many examples: two to eight, as the root of every hundred."""
    return min(8, max(2, round((examples / 100) ** 0.5)))


def find_clusters(x: Tensor, count: int, least: int, draw: Generator) -> Tensor:
    """The cluster of each example, (N, D) to (N,), numbered from the largest; none has fewer than `least` examples.

    Clusters that are smaller dissolve into the others, so there may be fewer than `count`.
    """
    import torch

    if not 2 <= count <= len(x) // least:
        raise RedxError(
            f"{len(x):,} examples give 2 to {len(x) // least} clusters of {least} or more, not {count}; choose another."
        )
    runs = [_settle(x, _start(x, count, draw)) for _ in range(STARTS)]
    centres = min(runs, key=lambda found: float(_far(x, found).amin(1).sum()))
    while True:
        nearest = _far(x, centres).argmin(1)
        sizes = torch.bincount(nearest, minlength=len(centres))
        if int(sizes.min()) >= least:
            break
        centres = centres[torch.arange(len(centres)) != int(sizes.argmin())]  # the smallest first
    rank = sizes.argsort(descending=True, stable=True).argsort()
    return rank[nearest]


def _start(x: Tensor, count: int, draw: Generator) -> Tensor:
    """Centres among the examples, each drawn by its squared distance to those before: (K, D)."""
    import torch

    chosen = [int(torch.randint(len(x), (1,), generator=draw))]
    far = _far(x, x[chosen])[:, 0]
    while len(chosen) < count:
        weights = far if float(far.sum()) > 0 else torch.ones_like(far)  # all the same: anyone
        # by hand, since torch.multinomial takes no more than 2**24 examples
        at = torch.rand((), generator=draw, dtype=torch.float64) * weights.double().sum()
        chosen.append(min(len(x) - 1, int(torch.searchsorted(weights.double().cumsum(0), at, right=True))))
        far = far.minimum(_far(x, x[chosen[-1:]])[:, 0])
    return x[chosen].clone()


def _settle(x: Tensor, centres: Tensor) -> Tensor:
    """Move every centre to the mean of what is nearest to it, until nothing changes."""
    import torch

    before = None
    for _ in range(ROUNDS):
        nearest = _far(x, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        before = nearest
        sizes = torch.bincount(nearest, minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)  # an empty one stays where it is
    return centres


def _far(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances, (N, K)."""
    return ((x * x).sum(1, keepdim=True) - 2 * x @ centres.T + (centres * centres).sum(1)).clamp_min(0)


MAX_DEVIATIONS = 10.0  # standard deviations: a feature that hardly moved in the shared subset may leap elsewhere


MIN_CLUSTER = 10  # examples of a cluster at least, where there are enough


def cluster_domains(raw: np.ndarray, seen: np.ndarray, labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Domains for data without any: clusters of what is not held out; where all is alike, the classes.

    What is held out joins the nearest cluster, as new examples would, so that cut-offs keep their promise.
    """
    spread = raw[seen].std(0)
    x = torch.from_numpy(
        ((raw - raw[seen].mean(0)) / np.where(spread > 0, spread, 1.0)).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
    )
    known = x[torch.from_numpy(seen)]
    least = max(1, min(MIN_CLUSTER, len(known) // (2 * count)))
    found = find_clusters(known, min(count, len(known) // least), least, generator(seed, "clusters"))
    centres = torch.stack([known[found == place].mean(0) for place in range(int(found.max()) + 1)])
    places = torch.cdist(x, centres).argmin(1)
    places[torch.from_numpy(seen)] = found
    return places.numpy() if len(centres) > 1 else labels
