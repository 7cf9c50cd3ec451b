"""Encoders: from inputs to the features h that the classifier and the experts read.

An encoder has a frozen part, whose outputs are computed once and cached, and a part that is trained with the base.
Image networks have no frozen part, texts go through a frozen language model and a trunk, features through a trunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redx.config import RunConfig, TrunkConfig
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.hardware import usable_device
from redx.models import trunks
from redx.models.backbones import hub
from redx.models.backbones.base import Encoder
from redx.models.backbones.image import IMAGE_ENCODERS, build_image_encoder
from redx.models.backbones.language import FrozenLM
from redx.models.fitting import fits

FEATURES = "features"  # the name of the backbone, and of the task, whose inputs are features already
Trunk = trunks.MLPTrunk | trunks.TokenSum | trunks.TopBlocks


class TextEncoder(Encoder):
    """Texts as bytes, (N, L), to features, (N, E): a frozen language model and a trained trunk.

    Only the trunk has weights that are saved with the base.
    """

    reads_text = True

    def __init__(self, frozen: FrozenLM, trunk: Trunk) -> None:
        super().__init__()
        self.frozen, self.trunk = frozen, trunk

    @property
    def width(self) -> int:
        return self.trunk.width

    @property
    def compared(self) -> slice:
        """The last block alone where several are read as they are: it tells strangers best."""
        as_they_are = isinstance(self.trunk, trunks.MLPTrunk) and not len(self.trunk.layers)
        several = len(self.frozen.blocks) > 1 and self.frozen.pooling == "mean"
        return slice(-self.frozen.hidden_size, None) if as_they_are and several else slice(None)

    @property
    def mark(self) -> str:
        return self.frozen.cache.folder.name

    @property
    def value_trunk(self) -> trunks.TokenSum | None:
        return self.trunk if isinstance(self.trunk, trunks.TokenSum) else None

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        self.frozen.prepare(list(dict.fromkeys(text for batch in inputs for text in unpack_texts(batch))))

    def read(self, inputs: Tensor) -> Tensor:
        """Return what the frozen model gives for texts: (N, E), or (N, T, E) by token."""
        return self.frozen.read(unpack_texts(inputs))

    def fit(self, features: Tensor) -> None:
        self.trunk.fit(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.read(x.cpu()).to(x.device) if x.dtype == torch.uint8 else x)


class FeatureEncoder(Encoder):
    """Features that the user brings, (N, F), through a trained trunk; there is no frozen part."""

    mark = FEATURES

    def __init__(self, trunk: FeatureTrunk | trunks.MLPTrunk) -> None:
        super().__init__()
        self.trunk = trunk

    @property
    def width(self) -> int:
        return self.trunk.width

    def fit(self, features: Tensor) -> None:
        self.trunk.fit(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class FeatureTrunk(nn.Module):
    """A trunk whose number of input features is taken from the data, or from the file of a trained base."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
        self.register_load_state_dict_pre_hook(self._build_for_state)

    @property
    def width(self) -> int:
        return self.inner.width

    def fit(self, x: Tensor) -> None:  # (N, F)
        """Build the trunk for the features of the shared subset, and standardise by them."""
        self.inner = build_feature_trunk(x.shape[1], self.config)
        span = x.amax(0) - x.amin(0)
        # A feature that hardly varies here may vary elsewhere, so it stays small; a constant one is not read at all.
        scale = x.std(0).maximum(0.1 * span)
        self.inner.mean.copy_(x.mean(0))
        self.inner.scale.copy_(torch.where(span > 0, scale, torch.inf))

    def forward(self, x: Tensor) -> Tensor:  # (N, F) -> (N, D) or (N, D + F)
        if x.shape[1:] != self.inner.mean.shape:
            count = len(self.inner.mean)
            raise RedxError(f"This model reads {count} features an example; give (N, {count}), not {tuple(x.shape)}.")
        return self.inner(x)

    def _build_for_state(self, _: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if f"{prefix}inner.mean" in state:
            inputs, start = len(state[f"{prefix}inner.mean"]), f"{prefix}inner."
            given = {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
            if not fits(lambda: build_feature_trunk(inputs, self.config), given):
                raise RuntimeError("the trunk does not fit its settings")
            self.inner = build_feature_trunk(inputs, self.config)


def build_feature_trunk(inputs: int, config: TrunkConfig) -> trunks.MLPTrunk:
    """Return an untrained trunk on this many features; a `linear` one only standardises them."""
    if config.shape == "linear":
        return trunks.MLPTrunk(inputs, inputs, 0, beside=False)
    return trunks.MLPTrunk(inputs, config.hidden, config.depth, config.beside)


def build_encoder(config: RunConfig) -> Encoder:
    """Return the untrained encoder that the settings of a run ask for.

    Parameters
    ----------
    config
        Settings of a run: its task, backbone, trunk and what is read from a language model.

    Returns
    -------
    Encoder
        An image network, a trunk on a frozen language model, or a trunk on the user's features.
    """
    trunk = config.base.trunk
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
    return _build_text_encoder(config, hub.model_folder(config.backbone))


def _build_text_encoder(config: RunConfig, folder: Path) -> TextEncoder:
    trunk, reading, device = config.base.trunk, config.reading, usable_device(config.device)
    runtime = reading.runtime
    if trunk.shape == "blocks":
        frozen = FrozenLM(
            folder, (-1 - trunk.blocks,), "tokens", reading.precision, device, reading.tokens, runtime=runtime
        )
        return TextEncoder(frozen, trunks.TopBlocks(folder, frozen.config, trunk.blocks))
    if (trunk.shape == "sum") != (reading.pooling == "tokens"):
        raise RedxError("A trunk of shape sum reads single tokens, and others do not; choose --pooling tokens or mean.")
    frozen = FrozenLM(
        folder, reading.blocks, reading.pooling, reading.precision, device, reading.tokens, runtime=runtime
    )
    if trunk.shape == "sum":
        return TextEncoder(frozen, trunks.TokenSum(frozen.width, trunk.hidden, trunk.depth, trunk.beside))
    return TextEncoder(frozen, build_feature_trunk(frozen.width, trunk))


def _build_feature_encoder(config: RunConfig) -> FeatureEncoder:
    if config.task != FEATURES:
        raise RedxError(f"The backbone '{FEATURES}' is for the task '{FEATURES}' alone; {hub.CHOICE}.")
    if config.backbone != FEATURES:
        raise RedxError(f"Task '{FEATURES}' reads features, which need no backbone; leave out --backbone.")
    if config.base.trunk.shape not in ("linear", "mlp"):
        raise RedxError(f"A trunk of shape {config.base.trunk.shape} reads no features; choose --trunk linear or mlp.")
    return FeatureEncoder(FeatureTrunk(config.base.trunk))
