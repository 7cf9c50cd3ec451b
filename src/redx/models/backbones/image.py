"""Image encoders: two convolutional networks for grey images of 28 × 28."""

import torch
from torch import Tensor, nn

from redx.models.backbones.base import Encoder


def conv_block(inner: int, outer: int, kernel: int = 3, padding: int = 1, pool: bool = False) -> list[nn.Module]:
    """Return a convolution with batch norm; pooling comes first, so that batch norm sees a quarter of the pixels."""
    pooling = [nn.MaxPool2d(2)] if pool else []
    return [nn.Conv2d(inner, outer, kernel, padding=padding, bias=False), *pooling, nn.BatchNorm2d(outer), nn.ReLU()]


class ConvEncoder(Encoder):
    """Five convolutions with batch norm: grey images of 28 × 28 to 256 features; the default of MNIST."""

    width, mark = 256, "cnn"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_block(1, 24, kernel=5, padding=0, pool=True),  # 12 × 12
            *conv_block(24, 48),
            *conv_block(48, 64, pool=True),  # 6 × 6
            *conv_block(64, 96),
            *conv_block(96, 96, pool=True),  # 3 × 3
            nn.Flatten(),
            nn.Linear(96 * 9, self.width, bias=False),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:  # (N, 28, 28) -> (N, 256)
        pixels = ((x.float() / 255 - 0.1307) / 0.3081)[:, None]
        return self.layers(pixels.contiguous(memory_format=torch.channels_last))  # faster convolutions


class SmallConvEncoder(Encoder):
    """The network of the papers: two convolutions, grey images of 28 × 28 to 128 features."""

    width, mark = 128, "cnn-small"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, self.width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:  # (N, 28, 28) -> (N, 128)
        return self.layers((x.float() / 255 - 0.1307)[:, None] / 0.3081)
