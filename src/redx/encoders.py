"""From a run's settings to its encoder: an image network by name, or a trunk on a frozen language model or features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from redx import backbones, pretrained, trunks
from redx.config import RunConfig, TrunkConfig
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.prefix import Prefix

GIVEN = "features"  # the backbone, and the task, of inputs that are features already


class Given(nn.Module):
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
        self.inner = on_features(x.shape[1], self.settings)
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
            self.inner = on_features(len(state[f"{prefix}inner.mean"]), self.settings)


def on_features(inputs: int, settings: TrunkConfig) -> trunks.Mlp:
    """A trunk on so many features; without layers h is the standardised features themselves."""
    if settings.shape == "linear":
        return trunks.Mlp(inputs, inputs, 0, beside=False)
    return trunks.Mlp(inputs, settings.hidden, settings.depth, settings.beside)


class Language(nn.Module):
    """Texts as bytes, (N, L), to h and what is read beside it, (N, E); only the trunk has weights to save.

    Without a prefix the inputs are features already, (N, F).
    """

    def __init__(self, prefix: Prefix | None, trunk: trunks.Mlp | trunks.Sum | trunks.Blocks | Given) -> None:
        super().__init__()
        self.frozen, self.trunk = prefix, trunk

    @property
    def prefix(self) -> Prefix:
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
        return self.frozen.shelf.folder.name if self.frozen else GIVEN

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        """Send every distinct text through the frozen part, once and for all."""
        if self.frozen:
            self.frozen.prepare(list(dict.fromkeys(text for some in inputs for text in unpack_texts(some))))

    def read(self, inputs: Tensor) -> Tensor:
        """What the frozen part makes of texts: (N, E), or (N, T, E) by token."""
        return self.frozen.read(unpack_texts(inputs)) if self.frozen else inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.read(x) if x.dtype == torch.uint8 else x)


def build(config: RunConfig) -> nn.Module:
    """An untrained encoder with a `width`, the number of features D that the classifier reads."""
    trunk, reading = config.base.trunk, config.reading
    if GIVEN in (config.backbone, config.task):
        return _given(config)
    if config.backbone in backbones.names():
        if trunk.shape != "none":
            raise RedxError(f"Task '{config.task}' reads text, which {config.backbone} cannot; {pretrained.CHOICE}.")
        return backbones.build(config.backbone)
    if trunk.shape == "none":
        known = ", ".join(backbones.names())
        raise RedxError(f"There is no backbone {config.backbone!r} for task '{config.task}'; choose one of {known}.")
    if config.base.teach == "value" and trunk.shape != "sum":
        raise RedxError(f"A trunk of shape {trunk.shape} learns classes, not values; choose --trunk sum.")
    folder = pretrained.folder(config.backbone)
    if trunk.shape == "blocks":
        prefix = Prefix(folder, (-1 - trunk.blocks,), "tokens", reading.precision, config.device, reading.tokens)
        return Language(prefix, trunks.Blocks(folder, prefix.config, trunk.blocks))
    if (trunk.shape == "sum") != (reading.pooling == "tokens"):
        raise RedxError("A trunk of shape sum reads single tokens, and others do not; choose --pooling tokens or mean.")
    prefix = Prefix(folder, reading.blocks, reading.pooling, reading.precision, config.device, reading.tokens)
    if trunk.shape == "sum":
        return Language(prefix, trunks.Sum(prefix.width, trunk.hidden, trunk.depth, trunk.beside))
    return Language(prefix, on_features(prefix.width, trunk))


def _given(config: RunConfig) -> Language:
    """A trunk on a user's features: no frozen part."""
    if config.task != GIVEN:
        raise RedxError(f"The backbone '{GIVEN}' is for the task '{GIVEN}' alone; {pretrained.CHOICE}.")
    if config.backbone != GIVEN:
        raise RedxError(f"Task '{GIVEN}' reads features, which need no backbone; leave out --backbone.")
    if config.base.trunk.shape not in ("linear", "mlp"):
        raise RedxError(f"A trunk of shape {config.base.trunk.shape} reads no features; choose --trunk linear or mlp.")
    return Language(None, Given(config.base.trunk))
