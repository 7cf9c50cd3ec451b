"""Distortions of images: small, random, and drawn from a generator."""

from __future__ import annotations

import torch

from redx.data.augment import distort
from redx.seeding import generator


def squares(count: int = 4) -> torch.Tensor:
    """Images of 28 × 28 with a white square of 10 × 10 in the middle."""
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[:, 9:19, 9:19] = 255
    return images


def test_the_generator_decides_the_distortion() -> None:
    first, again, other = (distort(squares(), generator(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_image_is_distorted_in_its_own_way_and_only_a_little() -> None:
    images = squares(200)
    distorted = distort(images, generator(0, "test"))
    assert distorted.shape == images.shape
    assert distorted.dtype == torch.float32
    assert float(distorted.min()) >= 0
    assert float(distorted.max()) < 255.01
    assert not torch.equal(distorted[0], distorted[1])
    overlap = (distorted * images).sum((1, 2)) / (images.float() * images).sum((1, 2))
    assert 0.5 < float(overlap.min()) < float(overlap.max()) <= 1
    assert float(distorted[:, 0].abs().max()) == 0  # nothing enters from outside the image


def test_an_empty_image_stays_empty() -> None:
    assert not distort(torch.zeros(3, 28, 28), generator(0, "test")).any()
