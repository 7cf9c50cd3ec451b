"""The small image encoder of the original papers: two convolutions of 32 and 64 channels, and 128 features."""

from torch import Tensor, nn


class Encoder(nn.Module):
    """Grey images of 28 × 28, as bytes, to 128 features."""

    width = 128  # D, all that there is

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
