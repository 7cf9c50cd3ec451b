"""Linear layers in integers of eight bits: one scale a column of the weights, and one a token of what they read.

A number x is kept as `s · (q₁ + q₂ / 254)` with integers q₁ and q₂ from -127 to 127, or with q₁ alone. Sums of integers
are exact, so what a layer computes for one token does not depend on the other tokens of a batch.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

LEVELS = 127  # largest integer
FINER = 2 * LEVELS  # how much finer the second integer is
TINY = 1e-30  # rows of zeros are divided by this


def split(x: Tensor, terms: int) -> tuple[list[Tensor], Tensor]:
    """Return numbers, (N, D), as one or two integers each, with the scale of every row, (N, 1).

    Examples
    --------
    >>> (first, second), scale = split(torch.tensor([[127.0, 0.5]]), 2)
    >>> first, second, scale
    (tensor([[127,   0]], dtype=torch.int8), tensor([[  0, 127]], dtype=torch.int8), tensor([[1.]]))
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min_(TINY) / LEVELS
    scaled = x / scale
    first = scaled.round()
    parts = [first.to(torch.int8)]
    if terms == 2:
        parts.append(scaled.sub_(first).mul_(FINER).round_().to(torch.int8))
    return parts, scale


class Int8Linear(nn.Module):
    """A linear layer whose weights and inputs are integers of eight bits, one or two a number.

    Of the products of integers the smallest, second times second, is left out.

    Parameters
    ----------
    linear
        The layer in float32.
    terms
        Integers a number, 1 or 2.
    """

    def __init__(self, linear: nn.Linear, terms: int) -> None:
        super().__init__()
        self.in_features, self.out_features, self.terms = linear.in_features, linear.out_features, terms
        parts, scale = split(linear.weight.detach().float(), terms)
        self.parts = [part.T for part in parts]  # (D, C) each
        self.scale = scale.T.contiguous()  # (1, C)
        self.bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:  # (..., D) -> (..., C)
        parts, scale = split(x.reshape(-1, self.in_features), self.terms)
        total = torch._int_mm(parts[0], self.parts[0]).float()
        if self.terms == 2:
            finer = torch._int_mm(parts[0], self.parts[1]).add_(torch._int_mm(parts[1], self.parts[0]))
            total.add_(finer, alpha=1 / FINER)
        total = torch.addcmul(self.bias, total.mul_(scale), self.scale, out=total)
        return total.view(*x.shape[:-1], self.out_features)


def quantise(model: nn.Module, terms: int) -> nn.Module:
    """Return a copy of a model whose linear layers compute in integers, `terms` a number; the rest stays in float32."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child, terms))
    return model.eval()
