"""Routers: from the features of an example to one gate (logit) for each expert.

linear   W_r h
mlp      two layers, hidden 256 unless told otherwise
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn


class NetworkRouter(nn.Module):
    """A fixed-width router over K experts; it must be retrained when their number changes."""

    def __init__(self, inputs: int, experts: int, shape: str = "mlp", hidden: int = 256) -> None:
        super().__init__()
        inner = [] if shape == "linear" else [nn.Linear(inputs, hidden), nn.GELU()]
        self.layers = nn.Sequential(*inner, nn.Linear(hidden if inner else inputs, experts))
        self.mean = nn.Buffer(torch.zeros(inputs))
        self.deviation = nn.Buffer(torch.ones(inputs))

    def forward(self, h: Tensor) -> Tensor:  # (N, D) -> (N, K)
        return self.layers(self.bus(h))

    def bus(self, h: Tensor) -> Tensor:
        return (h - self.mean) / self.deviation

    def standardise(self, h: Tensor) -> None:
        """Remember mean and spread of the features, so that every dimension counts alike."""
        self.mean.copy_(h.mean(0))
        self.deviation.copy_(h.std(0).clamp_min(1e-6))


def initialise_router(router: nn.Module, generator: Generator) -> None:
    """Draw all weights from one generator; biases start at zero."""
    with torch.no_grad():
        for parameter in router.parameters():
            bound = parameter.shape[1] ** -0.5 if parameter.ndim > 1 else 0.0
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)
