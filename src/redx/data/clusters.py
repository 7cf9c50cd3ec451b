"""Domains for data that names none: k-means clusters of the features."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from redx.errors import RedxError
from redx.seeding import generator

MAX_DEVIATIONS = 10.0  # features are clipped here: one that hardly varied on the shared subset may be large elsewhere
MIN_CLUSTER = 10  # smallest cluster, where there are enough examples
STARTS = 4  # initialisations of k-means, of which the best is kept


def choose_count(examples: int) -> int:
    """Return the default number of clusters, 2 to 8: the square root of one hundredth of the number of examples."""
    return min(8, max(2, round((examples / 100) ** 0.5)))


def find_clusters(x: Tensor, count: int, least: int, draw: Generator) -> Tensor:
    """Return the k-means cluster of every example.

    Clusters with fewer than `least` examples are dissolved, the smallest first: their examples join the nearest of the
    others. There may therefore be fewer than `count` clusters.

    Parameters
    ----------
    x
        Features, (N, D).
    count
        Number of clusters at most, at least 2.
    least
        Number of examples in a cluster at least.
    draw
        Source of the random initialisation.

    Returns
    -------
    Tensor
        Cluster indices, (N,); cluster 0 is the largest.

    Raises
    ------
    RedxError
        Where `count` clusters of `least` examples are impossible.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [0.1], [9.0], [0.2], [9.1]])
    >>> find_clusters(x, count=2, least=2, draw=torch.Generator().manual_seed(0))
    tensor([0, 0, 1, 0, 1])
    """
    if not 2 <= count <= len(x) // least:
        raise RedxError(
            f"{len(x):,} examples give 2 to {len(x) // least} clusters of {least} or more, not {count}; choose another."
        )
    centres = _fit_centres(x, count, draw)
    while True:
        nearest = torch.cdist(x, centres).argmin(1)
        sizes = torch.bincount(nearest, minlength=len(centres))
        if int(sizes.min()) >= least:
            break
        centres = centres[torch.arange(len(centres)) != int(sizes.argmin())]
    rank = sizes.argsort(descending=True, stable=True).argsort()
    return rank[nearest]


def _fit_centres(x: Tensor, count: int, draw: Generator) -> Tensor:
    """Return the centres of k-means, (K, D), on one thread, so that rounding does not depend on the machine's cores."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    seed = int(torch.randint(2**31 - 1, (1,), generator=draw))
    settings: dict[str, Any] = {"n_init": STARTS, "algorithm": "lloyd", "random_state": seed}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct examples than clusters are no problem
        model = KMeans(count, **settings).fit(x.numpy())
    return torch.from_numpy(model.cluster_centers_).to(x.dtype)


def cluster_domains(raw: np.ndarray, seen: np.ndarray, labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return a domain for every example of data without domains.

    The clusters are fitted on the examples that are not held out. A held-out example gets the domain of the nearest
    cluster, as a new example would, so that the guarantee of the conformal cut-offs applies to new examples.

    Parameters
    ----------
    raw
        Features, (N, D).
    seen
        True for the examples that are not held out, (N,).
    labels
        Class indices, (N,); they are the domains where all features are alike, so that there is only one cluster.
    count
        Number of domains at most.
    seed
        Seed of the clusters.

    Returns
    -------
    numpy.ndarray
        Domain indices, (N,).
    """
    spread = raw[seen].std(0)
    scaled = (raw - raw[seen].mean(0)) / np.where(spread > 0, spread, 1.0)
    x = torch.from_numpy(scaled.clip(-MAX_DEVIATIONS, MAX_DEVIATIONS))
    known = x[torch.from_numpy(seen)]
    least = max(1, min(MIN_CLUSTER, len(known) // (2 * count)))
    clusters = find_clusters(known, min(count, len(known) // least), least, generator(seed, "clusters"))
    centres = torch.stack([known[clusters == index].mean(0) for index in range(int(clusters.max()) + 1)])
    domains = torch.cdist(x, centres).argmin(1)
    domains[torch.from_numpy(seen)] = clusters
    return domains.numpy() if len(centres) > 1 else labels
