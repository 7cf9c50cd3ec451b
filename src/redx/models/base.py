"""The frozen base, `logits = W_c h` with `h = bus(encoder(x))`, and untrained banks that fit it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from redx.errors import RedxError


@dataclass(frozen=True)
class Base:
    """The frozen base: an encoder, the bus that standardises its features, and the shared classifier W_c.

    The classifier reads the first D features, h; experts read all E of them, h and what the encoder gives beside it.
    """

    encoder: nn.Module
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (E,)
    scale: Tensor  # (E,)

    @staticmethod
    def of(tensors: dict[str, Tensor], encoder: nn.Module) -> Base:
        """The base from its file, with an untrained encoder to fill."""
        inner = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        try:
            encoder.load_state_dict(inner)
            outer = (tensors[name] for name in ("classifier.weight", "classifier.bias", "bus.mean", "bus.scale"))
            return Base(encoder.eval(), *outer)
        except (KeyError, RuntimeError) as error:
            raise RedxError(
                "The file of the base does not fit the run's backbone and trunk; delete the run and repeat it."
            ) from error

    @staticmethod
    def over(encoder: nn.Module, classifier: nn.Linear, seen: Tensor) -> Base:
        """The base of a trained encoder and classifier: the bus comes from what was seen, (N, E), and is folded in."""
        width = classifier.in_features
        with torch.no_grad():
            mean, scale = seen.mean(0), seen.std(0) + 0.1 * seen.std()  # a dead feature stays small
            weight = classifier.weight.T * scale[:width, None]
            bias = classifier.bias + mean[:width] @ classifier.weight.T
        return Base(encoder, weight, bias, mean, scale)

    @property
    def width(self) -> int:
        """E, what an expert reads."""
        return len(self.mean)

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    def embed(self, inputs: Tensor) -> Tensor:  # (N, ...) -> (N, E)
        with torch.no_grad():
            return (self.encoder(inputs) - self.mean) / self.scale

    def to(self, device: str) -> Base:
        """The same base elsewhere; its encoder moves along."""
        moved = (tensor.to(device) for tensor in (self.weight, self.bias, self.mean, self.scale))
        return Base(self.encoder.to(device), *moved)

    def classify(self, h: Tensor) -> Tensor:  # (..., E) -> (..., C)
        return h[..., : len(self.weight)] @ self.weight + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """All that it consists of, by name."""
        inner = {f"encoder.{name}": tensor for name, tensor in self.encoder.state_dict().items()}
        outer = {"classifier.weight": self.weight, "classifier.bias": self.bias}
        return inner | outer | {"bus.mean": self.mean, "bus.scale": self.scale}
