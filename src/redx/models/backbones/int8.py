"""Linear layers in integers of eight bits: one scale a column of the weights, and one a token of what they read.

A number x is kept as `s · q` with an integer q from -127 to 127. Sums of integers are exact, so what a layer computes
for one token does not depend on the other tokens of a batch.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

LEVELS = 127  # largest integer
TINY = 1e-30  # rows of zeros are divided by this


def to_integers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers, (N, D), as integers with the scale of every row, (N, 1).

    Examples
    --------
    >>> to_integers(torch.tensor([[127.0, 1.4]]))
    (tensor([[127,   1]], dtype=torch.int8), tensor([[1.]]))
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min_(TINY) / LEVELS
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer whose weights and inputs are integers of eight bits.

    Parameters
    ----------
    linear
        The layer in float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = to_integers(linear.weight.detach().float())
        self.weight, self.scale = weight.T, scale.T.contiguous()  # (D, C) and (1, C)
        self.bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:  # (..., D) -> (..., C)
        rows, scale = to_integers(x.reshape(-1, self.in_features))
        total = torch._int_mm(rows, self.weight).float().mul_(scale)  # pyright: ignore[reportPrivateImportUsage]
        return torch.addcmul(self.bias, total, self.scale).view(*x.shape[:-1], self.out_features)


def quantise(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose linear layers compute in integers; the rest stays in float32."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
    return model.eval()
