"""Small distortions of images, drawn anew in every step: the same digit by another hand."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample


def distort(
    images: Tensor, generator: Generator, degrees: float = 12, zoom: float = 0.12, shift: float = 0.08
) -> Tensor:
    """Rotate, stretch, shear and move each image a little: bytes (N, H, W) to the same."""
    count = len(images)

    def draw(size: float) -> Tensor:
        return (2 * torch.rand(count, generator=generator) - 1) * size

    angle, shear = draw(math.radians(degrees)), draw(0.2)
    wide, high = 1 + draw(zoom), 1 + draw(zoom)
    across = torch.stack([wide * angle.cos(), -high * angle.sin() + shear, draw(shift)], -1)
    down = torch.stack([wide * angle.sin(), high * angle.cos(), draw(shift)], -1)
    grid = affine_grid(torch.stack([across, down], 1), [count, 1, *images.shape[1:]], align_corners=False)
    return grid_sample(images[:, None].float(), grid, align_corners=False)[:, 0]
