"""Clusters as domains: found, numbered by size, and never too small."""

from __future__ import annotations

import pytest
import torch

from helpers.own_data import draw_clouds
from redx.data import clusters
from redx.errors import RedxError
from redx.seeding import generator


def test_clusters_find_the_clouds() -> None:
    arrays = draw_clouds()
    labels = clusters.find_clusters(torch.tensor(arrays["x"]).float(), 4, 10, generator(0, "test"))
    for cloud in range(4):
        assert len(labels[torch.tensor(arrays["domain"]) == cloud].unique()) == 1
    assert torch.equal(labels, clusters.find_clusters(torch.tensor(arrays["x"]).float(), 4, 10, generator(0, "test")))
    assert (torch.bincount(labels).diff() <= 0).all()  # the largest first


def test_small_clusters_are_merged_and_equal_points_do_no_harm() -> None:
    x = torch.cat([torch.zeros(50, 2), torch.ones(50, 2), torch.full((3, 2), 9.0)])
    sizes = torch.bincount(clusters.find_clusters(x, 3, 10, generator(0, "test")))
    assert sizes.min() >= 10
    assert clusters.find_clusters(torch.zeros(40, 3), 2, 10, generator(0, "test")).tolist() == [0] * 40
    with pytest.raises(RedxError, match="give 2 to 10 clusters of 10 or more, not 11"):
        clusters.find_clusters(x, 11, 10, generator(0, "test"))
    assert [clusters.choose_count(count) for count in (20, 400, 1600, 10**6)] == [2, 2, 4, 8]
