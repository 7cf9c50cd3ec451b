"""Random distortions of images, drawn anew for every training step."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate


def distort(images: Tensor, generator: Generator) -> Tensor:
    """Return the images, slightly rotated, stretched, sheared, shifted and bent.

    Parameters
    ----------
    images
        Pixels, (N, H, W); what a distortion moves in from outside is 0.
    generator
        Source of the random distortions, one per image.

    Returns
    -------
    Tensor
        Pixels as floats, (N, H, W).
    """
    count, shape = len(images), images.shape[1:]

    def draw(size: float) -> Tensor:
        return (2 * torch.rand(count, generator=generator) - 1) * size

    angle, shear = draw(math.radians(15)), draw(0.2)
    width, height = draw(0.12).exp(), draw(0.12).exp()
    cos, sin = angle.cos(), angle.sin()
    horizontal = torch.stack([width * cos, width * (cos * shear - sin), draw(0.1)], -1)  # (N, 3)
    vertical = torch.stack([height * sin, height * (sin * shear + cos), draw(0.1)], -1)
    grid = affine_grid(torch.stack([horizontal, vertical], 1), [count, 1, *shape], align_corners=False)  # (N, H, W, 2)
    knots = 0.06 * torch.randn(count, 2, 5, 5, generator=generator)  # a smooth field is interpolated from 5 × 5 knots
    bend = interpolate(knots, size=tuple(shape), mode="bicubic", align_corners=True)
    return grid_sample(images[:, None].float(), grid + bend.permute(0, 2, 3, 1), align_corners=False)[:, 0]
