"""The image encoder of the default preset: five convolutions with batch norm, and 256 features."""

import torch
from torch import Tensor, nn


def block(inner: int, outer: int, kernel: int = 3, padding: int = 1, pool: bool = False) -> list[nn.Module]:
    """A convolution; the pool stands before batch norm, which then sees a quarter of the pixels."""
    halve = [nn.MaxPool2d(2)] if pool else []
    return [nn.Conv2d(inner, outer, kernel, padding=padding, bias=False), *halve, nn.BatchNorm2d(outer), nn.ReLU()]


class Encoder(nn.Module):
    """Grey images of 28 × 28 to 256 features."""

    width = 256

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *block(1, 24, kernel=5, padding=0, pool=True),  # 12 × 12
            *block(24, 48),
            *block(48, 64, pool=True),  # 6 × 6
            *block(64, 96),
            *block(96, 96, pool=True),  # 3 × 3
            nn.Flatten(),
            nn.Linear(96 * 9, self.width, bias=False),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:  # (N, 28, 28) -> (N, 256)
        pixels = ((x.float() / 255 - 0.1307) / 0.3081)[:, None]
        return self.layers(pixels.contiguous(memory_format=torch.channels_last))  # faster convolutions
