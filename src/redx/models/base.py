"""The frozen base: `logits = W_c h` with `h = bus(encoder(x))`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from redx.errors import RedxError
from redx.io.files import without_prefix
from redx.models.backbones.base import Encoder


@dataclass(frozen=True)
class Base:
    """The frozen base: an encoder, the bus that standardises its features, and the shared classifier W_c.

    The classifier reads the first D features, h. Experts and router read all E of them: h and whatever else the
    encoder gives.

    Attributes
    ----------
    encoder
        The encoder; its weights are saved with the base.
    weight, bias
        The classifier W_c, of shape (D, C), and its bias, (C,).
    mean, scale
        The bus: features are standardised as `(x - mean) / scale`, each (E,).
    """

    encoder: Encoder
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (E,)
    scale: Tensor  # (E,)

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], encoder: Encoder) -> Base:
        """Return the base that `tensors()` described, with an untrained encoder to fill."""
        try:
            encoder.load_state_dict(without_prefix(tensors, "encoder"))
            outer = [tensors[name] for name in ("classifier.weight", "classifier.bias", "bus.mean", "bus.scale")]
            _check_outer(*outer)
            return Base(encoder.eval(), *outer)
        except (KeyError, RuntimeError) as error:
            raise RedxError(
                "The file of the base does not fit the run's backbone and trunk; delete the run and repeat it."
            ) from error

    @staticmethod
    def from_trained(encoder: Encoder, classifier: nn.Linear, features: Tensor) -> Base:
        """Return the base of a trained encoder and classifier.

        The bus standardises by the features of the shared subset, (N, E), and is folded into the classifier, so that
        the logits stay the same.
        """
        width = classifier.in_features
        with torch.no_grad():
            mean = features.mean(0)
            scale = features.std(0) + 0.1 * features.std()  # a feature that is always zero stays small
            weight = classifier.weight.T * scale[:width, None]
            bias = classifier.bias + mean[:width] @ classifier.weight.T
        return Base(encoder, weight, bias, mean, scale)

    @property
    def width(self) -> int:
        """E, the number of features that an expert reads."""
        return len(self.mean)

    @property
    def known(self) -> int:
        """The number of classes that the base was trained on; 1 for a regression."""
        return self.weight.shape[1]

    @property
    def outputs(self) -> int:
        """C, the number of outputs; more than `known` where experts bring classes of their own."""
        return self.known

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the standardised features of inputs: (N, ...) to (N, E)."""
        with torch.no_grad():
            return (self.encoder(inputs) - self.mean) / self.scale

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits of standardised features: (..., E) to (..., C)."""
        return h[..., : len(self.weight)] @ self.weight + self.bias

    def to(self, device: str) -> Base:
        """Return the same base on another device; the encoder itself is moved."""
        moved = (tensor.to(device) for tensor in (self.weight, self.bias, self.mean, self.scale))
        return Base(self.encoder.to(device), *moved)

    def features_to(self, device: str) -> Base:
        """Return the part of this base that reads features on another device; the encoder stays where it is."""
        names = ("weight", "bias", "mean", "scale")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def double(self) -> Base:
        """Return the same base in double precision; the encoder itself is converted."""
        outer = (tensor.double() for tensor in (self.weight, self.bias, self.mean, self.scale))
        return Base(self.encoder.double(), *outer)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be saved."""
        inner = {f"encoder.{name}": tensor for name, tensor in self.encoder.state_dict().items()}
        outer = {"classifier.weight": self.weight, "classifier.bias": self.bias}
        return inner | outer | {"bus.mean": self.mean, "bus.scale": self.scale}


def _check_outer(weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> None:
    """Raise an error if the shapes of classifier and bus do not agree, or if they are no floating-point numbers."""
    width, outputs = weight.shape if weight.ndim == 2 else (0, 0)
    fits = bias.shape == (outputs,) and mean.ndim == 1 and mean.shape == scale.shape and 0 < width <= len(mean)
    if not outputs or not fits or {tensor.dtype for tensor in (weight, bias, mean, scale)} - {torch.float32}:
        raise RuntimeError("the shapes or types of the base do not agree")
