"""From a run's settings to its encoder: an image network by name, or a trunk on a frozen language model or features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from redx.config import RunConfig, TrunkConfig
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.models import trunks
from redx.models.backbones import hub
from redx.models.backbones.image import IMAGE_ENCODERS, build_image_encoder
from redx.models.backbones.language import FrozenLM

FEATURES = "features"  # the backbone, and the task, of inputs that are features already


class FeatureTrunk(nn.Module):
    """A trunk on features whose number only the data tell, or the file of a trained base."""

    def __init__(self, settings: TrunkConfig) -> None:
        super().__init__()
        self.settings = settings
        self.register_load_state_dict_pre_hook(self._adapt)

    @property
    def width(self) -> int:
        return self.inner.width

    def fit(self, x: Tensor) -> None:  # (N, E)
        """Take the number of features from the shared subset, and set the bus from it."""
        self.inner = build_feature_trunk(x.shape[1], self.settings)
        reach = x.amax(0) - x.amin(0)
        # a feature that hardly varies here may vary elsewhere: it stays small, and one that never does is not read
        scale = x.std(0).maximum(0.1 * reach)
        self.inner.mean.copy_(x.mean(0))
        self.inner.scale.copy_(torch.where(reach > 0, scale, torch.inf))

    def forward(self, x: Tensor) -> Tensor:  # (N, E) -> (N, D) or (N, D + E)
        if x.shape[1:] != self.inner.mean.shape:
            wanted = len(self.inner.mean)
            raise RedxError(f"This model reads {wanted} features an example; give (N, {wanted}), not {tuple(x.shape)}.")
        return self.inner(x)

    def _adapt(self, _: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if f"{prefix}inner.mean" in state:
            self.inner = build_feature_trunk(len(state[f"{prefix}inner.mean"]), self.settings)


def build_feature_trunk(inputs: int, settings: TrunkConfig) -> trunks.MLPTrunk:
    """A trunk on so many features; without layers h is the standardised features themselves."""
    if settings.shape == "linear":
        return trunks.MLPTrunk(inputs, inputs, 0, beside=False)
    return trunks.MLPTrunk(inputs, settings.hidden, settings.depth, settings.beside)


class TextEncoder(nn.Module):
    """Texts as bytes, (N, L), to h and what is read beside it, (N, E); only the trunk has weights to save.

    Without a prefix the inputs are features already, (N, F).
    """

    def __init__(
        self, prefix: FrozenLM | None, trunk: trunks.MLPTrunk | trunks.TokenSum | trunks.TopBlocks | FeatureTrunk
    ) -> None:
        super().__init__()
        self.frozen, self.trunk = prefix, trunk

    @property
    def prefix(self) -> FrozenLM:
        """The frozen part."""
        if self.frozen is None:
            raise RedxError("Features have no language model before them; ask for texts with the task 'jsonl'.")
        return self.frozen

    @property
    def width(self) -> int:
        """D, what the classifier reads."""
        return self.trunk.width

    @property
    def mark(self) -> str:
        """A name for what the frozen part computes."""
        return self.frozen.shelf.folder.name if self.frozen else FEATURES

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        """Send every distinct text through the frozen part, once and for all."""
        if self.frozen:
            self.frozen.prepare(list(dict.fromkeys(text for some in inputs for text in unpack_texts(some))))

    def read(self, inputs: Tensor) -> Tensor:
        """What the frozen part makes of texts: (N, E), or (N, T, E) by token."""
        return self.frozen.read(unpack_texts(inputs)) if self.frozen else inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.read(x) if x.dtype == torch.uint8 else x)


def build_encoder(config: RunConfig) -> nn.Module:
    """An untrained encoder with a `width`, the number of features D that the classifier reads."""
    trunk, reading = config.base.trunk, config.reading
    if FEATURES in (config.backbone, config.task):
        return _build_feature_encoder(config)
    if config.backbone in IMAGE_ENCODERS:
        if trunk.shape != "none":
            raise RedxError(f"Task '{config.task}' reads text, which {config.backbone} cannot; {hub.CHOICE}.")
        return build_image_encoder(config.backbone)
    if trunk.shape == "none":
        known = ", ".join(IMAGE_ENCODERS)
        raise RedxError(f"There is no backbone {config.backbone!r} for task '{config.task}'; choose one of {known}.")
    if config.base.teach == "value" and trunk.shape != "sum":
        raise RedxError(f"A trunk of shape {trunk.shape} learns classes, not values; choose --trunk sum.")
    folder = hub.model_folder(config.backbone)
    if trunk.shape == "blocks":
        prefix = FrozenLM(folder, (-1 - trunk.blocks,), "tokens", reading.precision, config.device, reading.tokens)
        return TextEncoder(prefix, trunks.TopBlocks(folder, prefix.config, trunk.blocks))
    if (trunk.shape == "sum") != (reading.pooling == "tokens"):
        raise RedxError("A trunk of shape sum reads single tokens, and others do not; choose --pooling tokens or mean.")
    prefix = FrozenLM(folder, reading.blocks, reading.pooling, reading.precision, config.device, reading.tokens)
    if trunk.shape == "sum":
        return TextEncoder(prefix, trunks.TokenSum(prefix.width, trunk.hidden, trunk.depth, trunk.beside))
    return TextEncoder(prefix, build_feature_trunk(prefix.width, trunk))


def _build_feature_encoder(config: RunConfig) -> TextEncoder:
    """A trunk on a user's features: no frozen part."""
    if config.task != FEATURES:
        raise RedxError(f"The backbone '{FEATURES}' is for the task '{FEATURES}' alone; {hub.CHOICE}.")
    if config.backbone != FEATURES:
        raise RedxError(f"Task '{FEATURES}' reads features, which need no backbone; leave out --backbone.")
    if config.base.trunk.shape not in ("linear", "mlp"):
        raise RedxError(f"A trunk of shape {config.base.trunk.shape} reads no features; choose --trunk linear or mlp.")
    return TextEncoder(None, FeatureTrunk(config.base.trunk))
