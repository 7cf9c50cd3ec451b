"""A stranger's own encoder and data of four domains, as small as they can be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

import redx

DOMAINS = {"animals": ("cat", "dog"), "cars": ("bus", "van"), "fruit": ("fig", "pear"), "tools": ("awl", "saw")}
LABELS = tuple(label for own in DOMAINS.values() for label in own)


class Examples(NamedTuple):
    """Images with their labels and domains."""

    x: Tensor  # (N, 1, 4, 4)
    y: list[str]
    domains: list[str]

    def of(self, domain: str) -> tuple[Tensor, list[str]]:
        """Return the examples of one domain."""
        rows = [row for row, name in enumerate(self.domains) if name == domain]
        return self.x[rows], [self.y[row] for row in rows]


def own_encoder(width: int = 12, seed: int = 0) -> nn.Module:
    """Return an encoder that redx knows nothing of."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.5))


def draw_images(count: int, seed: int) -> Examples:
    """Return images whose label shows as a noisy pattern."""
    draw = torch.Generator().manual_seed(seed)
    patterns = 1.2 * torch.randn(len(LABELS), 1, 4, 4, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(len(LABELS), (count,), generator=draw)
    x = patterns[labels] + torch.randn(count, 1, 4, 4, generator=draw)
    names = list(DOMAINS)
    return Examples(x, [LABELS[label] for label in labels], [names[label // 2] for label in labels.tolist()])


def composed_model(backbone: nn.Module | None = None, calibrate: bool = True) -> redx.Model:
    """Return a model on the encoder, with one expert for each domain."""
    model = redx.Model(backbone or own_encoder(), LABELS)
    shared, own = draw_images(120, 1), draw_images(400, 2)
    model.fit_base(shared.x, shared.y)
    for name in DOMAINS:
        model.add_expert(name, *own.of(name))
    if calibrate:
        held = draw_images(200, 3)
        model.calibrate(held.x, held.y, risk=0.05)
    return model
