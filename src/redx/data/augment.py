"""Small distortions of images, drawn anew in every step: the same digit by another hand."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate


def distort(images: Tensor, generator: Generator) -> Tensor:
    """Turn, stretch, shear, move and bend each image a little: pixels (N, H, W) to the same, with 0 around them."""
    count, shape = len(images), images.shape[1:]

    def draw(size: float) -> Tensor:
        return (2 * torch.rand(count, generator=generator) - 1) * size

    angle, shear = draw(math.radians(15)), draw(0.2)
    wide, high = draw(0.12).exp(), draw(0.12).exp()
    cos, sin = angle.cos(), angle.sin()
    across = torch.stack([wide * cos, wide * (cos * shear - sin), draw(0.1)], -1)  # (N, 3)
    down = torch.stack([high * sin, high * (sin * shear + cos), draw(0.1)], -1)
    grid = affine_grid(torch.stack([across, down], 1), [count, 1, *shape], align_corners=False)  # (N, H, W, 2)
    knots = 0.06 * torch.randn(count, 2, 5, 5, generator=generator)  # a smooth field through 5 × 5 of them
    bend = interpolate(knots, size=tuple(shape), mode="bicubic", align_corners=True)
    return grid_sample(images[:, None].float(), grid + bend.permute(0, 2, 3, 1), align_corners=False)[:, 0]
