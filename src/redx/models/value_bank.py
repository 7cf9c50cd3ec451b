"""Experts that correct the value of an answer before it is coded as classes.

    v_k = v + g_k(x),    shift: W_c (code(v_k) - h),    value: W_c code(v_k)

v is the value that the base codes in its features h, and g_k a small network, zero at the start. A `shift` is a
residual like any other: added to the base's logits it gives those of v_k, so weights compose it as they compose the
others. A `value` is a head of its own. Both are bounded whatever g_k gives.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redx.errors import RedxError
from redx.models.base import Base
from redx.models.values import class_distance, class_values, classifier_of_values, code_values, decode_values

SHAPES = ("shift", "value")


class ValueBank(nn.Module):
    """K networks that predict the value of an answer, mapped to logits by the base's code and classifier.

    Parameters
    ----------
    network
        The networks g_k as one stack, from what experts read, (K, B, E), to one number, (K, B, 1).
    base
        The frozen base, which codes a value; its code and classifier are no part of the expert and not saved with it.
    shift
        Whether the output is what has to be added to the base's logits, instead of logits of its own.
    """

    def __init__(self, network: nn.Module, base: Base, shift: bool) -> None:
        super().__init__()
        self.network, self.shift = network, shift
        width = len(base.weight)
        self.mean, self.deviation = (
            nn.Buffer(tensor[:width].clone(), persistent=False) for tensor in (base.mean, base.scale)
        )
        self.classifier = nn.Buffer(base.weight, persistent=False)  # W_c, (D, C)
        self.bias = nn.Buffer(base.bias, persistent=False)  # (C,)

    def forward(self, x: Tensor) -> Tensor:  # (K, B, E) -> (K, B, C)
        return self.code(self.network(x), x)

    def values(self, x: Tensor) -> Tensor:
        """Return every expert's value of an example: (K, B, E) to (K, B)."""
        return self.base_values(x) + self.network(x)[..., 0]

    def base_values(self, x: Tensor) -> Tensor:
        """Return the value that the base codes in its features: (K, B, E) to (K, B)."""
        return decode_values(x[..., : len(self.mean)] * self.deviation + self.mean)

    def code(self, corrections: Tensor, x: Tensor) -> Tensor:
        """Return the outputs for corrections of the value, (K, B, 1), of examples, (K, B, E): (K, B, C)."""
        width, outputs = self.classifier.shape
        h = (code_values(self.base_values(x) + corrections[..., 0], width // 2) - self.mean) / self.deviation
        # a product of its own for every expert, so that its bits do not depend on the others
        weight = self.classifier.expand(len(x), width, outputs)
        return torch.bmm(h - x[..., :width], weight) if self.shift else torch.baddbmm(self.bias, h, weight)

    def errors(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error of each expert's value, in classes: (K, B, E) and (K, B) to (K,)."""
        count = self.classifier.shape[1]
        wrong = (self.values(x) - class_values(count, x.device)[labels]) / class_distance(count)
        return wrong.square().mean(1)


def check_value_base(base: Base) -> None:
    """Refuse a base whose classifier does not code values, and classes that have no value."""
    if base.outputs > base.known:
        raise RedxError("Experts that correct a value bring no classes of their own; choose another shape of experts.")
    width = len(base.weight)
    fits = width % 2 == 0
    if fits:
        device, dtype = base.weight.device, base.weight.dtype
        with torch.device("cpu"):
            expected = classifier_of_values(base.known, width // 2)
        actual = base.weight.detach() / base.scale[:width, None]
        fits = torch.allclose(actual, expected.to(device, dtype), rtol=0.01, atol=0.02)  # W_c may be kept as bfloat16
    if not fits:
        raise RedxError("This base answers with classes and codes no value; train a base with --trunk sum.")
