"""From a run's settings to its encoder: an image network by name, or a frozen language model with a trunk on it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from redx import backbones, pretrained, texts, trunks
from redx.config import Config
from redx.errors import RedxError
from redx.prefix import Prefix


class Language(nn.Module):
    """Texts as bytes, (N, L), to h and what is read beside it, (N, E); only the trunk has weights to save."""

    def __init__(self, prefix: Prefix, trunk: trunks.Mlp | trunks.Sum | trunks.Blocks) -> None:
        super().__init__()
        self.prefix, self.trunk = prefix, trunk
        self.width = trunk.width

    @property
    def mark(self) -> str:
        """A name for what the frozen part computes."""
        return self.prefix.shelf.folder.name

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        """Send every distinct text through the frozen part, once and for all."""
        self.prefix.prepare(list(dict.fromkeys(text for some in inputs for text in texts.unpack(some))))

    def read(self, inputs: Tensor) -> Tensor:
        """What the frozen part makes of texts: (N, E), or (N, T, E) by token."""
        return self.prefix.read(texts.unpack(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.read(x) if x.dtype == torch.uint8 else x)


def build(config: Config) -> nn.Module:
    """An untrained encoder with a `width`, the number of features D that the classifier reads."""
    trunk, reading = config.base.trunk, config.reading
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
        prefix = Prefix(folder, (-1 - trunk.blocks,), "tokens", reading.precision, config.device)
        return Language(prefix, trunks.Blocks(folder, prefix.config, trunk.blocks))
    if (trunk.shape == "sum") != (reading.pooling == "tokens"):
        raise RedxError("A trunk of shape sum reads single tokens, and mlp does not; choose --pooling tokens or mean.")
    prefix = Prefix(folder, reading.blocks, reading.pooling, reading.precision, config.device)
    if trunk.shape == "sum":
        return Language(prefix, trunks.Sum(prefix.width, trunk.hidden, trunk.depth, trunk.beside))
    return Language(prefix, trunks.Mlp(prefix.width, trunk.hidden, trunk.depth, trunk.beside))
