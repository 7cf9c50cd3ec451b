"""The frozen base: `logits = W_c h`, where h are the standardised features of an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redx.errors import RedxError
from redx.io.files import without_prefix
from redx.models.backbones.base import Encoder, IdentityEncoder

OUTER = (
    "classifier.weight",
    "classifier.bias",
    "standardise.mean",
    "standardise.scale",
)  # tensors beside the encoder's


class Base(nn.Module):
    """The frozen base: an encoder, the standardisation of its features, and the shared classifier W_c.

    The classifier reads the first D features, h. Experts and router read all E of them: h and whatever else the
    encoder gives.

    Parameters
    ----------
    encoder
        The encoder; its weights are saved with the base.
    weight, bias
        The classifier W_c, of shape (D, C), and its bias, (C,).
    mean, scale
        Features are standardised as `(x - mean) / scale`, each (E,).
    """

    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (E,)
    scale: Tensor  # (E,)

    def __init__(self, encoder: Encoder, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        for name, tensor in (("weight", weight), ("bias", bias), ("mean", mean), ("scale", scale)):
            self.register_buffer(name, tensor.detach())

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], encoder: Encoder) -> Base:
        """Return the base that `tensors()` described, with an untrained encoder to fill."""
        try:
            encoder.load_state_dict(without_prefix(tensors, "encoder"))
            outer = [tensors[name] for name in OUTER]
            _check_outer(*outer)
            return Base(encoder.eval(), *outer)
        except (KeyError, RuntimeError) as error:
            raise RedxError(
                "The file of the base does not fit the model's backbone and trunk; repeat the run that made it."
            ) from error

    @staticmethod
    def from_trained(encoder: Encoder, classifier: nn.Linear, features: Tensor) -> Base:
        """Return the base of a trained encoder and classifier.

        Features are standardised by those of the shared subset, (N, E), and this is folded into the classifier, so that
        the logits stay the same.
        """
        width = classifier.in_features
        with torch.no_grad():
            mean = features.mean(0)
            scale = features.std(0) + 0.1 * features.std()  # a feature that is always zero stays small
            weight = (classifier.weight.T * scale[:width, None]).contiguous()  # as it is read from a file, bit for bit
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
            read = self.encoder.read(inputs).to(self.mean.device)
            return (self.encoder(read) - self.mean) / self.scale

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits of standardised features: (..., E) to (..., C)."""
        return h[..., : len(self.weight)] @ self.weight + self.bias

    def on_features(self, device: str | torch.device = "cpu") -> Base:
        """Return the part of this base that reads features, on a device; the base itself stays as it is."""
        outer = (self.weight, self.bias, self.mean, self.scale)
        return Base(IdentityEncoder(), *(tensor.to(device) for tensor in outer))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be saved."""
        inner = {f"encoder.{name}": tensor for name, tensor in self.encoder.state_dict().items()}
        return inner | dict(zip(OUTER, (self.weight, self.bias, self.mean, self.scale), strict=True))


def _check_outer(weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> None:
    """Raise an error if the shapes of classifier and standardisation do not agree, or their types are others."""
    width, outputs = weight.shape if weight.ndim == 2 else (0, 0)
    fits = bias.shape == (outputs,) and mean.ndim == 1 and mean.shape == scale.shape and 0 < width <= len(mean)
    if not outputs or not fits or {tensor.dtype for tensor in (weight, bias, mean, scale)} - {torch.float32}:
        raise RuntimeError("the shapes or types of the base do not agree")
