"""What each stage computes: from settings, data and a seed to tensors; no run folder, no order of things."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.io import feature_cache, hashing
from redx.io.progress import progress
from redx.models.base import Base
from redx.models.encoder import TextEncoder
from redx.training import datasets
from redx.training.datasets import BATCH, SharedData


def embed_split(config: RunConfig, base: Base, split: Split) -> Split:
    """A split as the experts read it; the frozen encoder runs once for the same weights and data."""
    if config.backbone == "none":
        return split
    mark = base.encoder.mark if isinstance(base.encoder, TextEncoder) else config.backbone
    name = hashing.hash_tensors(base.tensors(), mark, split.digest())

    def make() -> Iterator[Tensor]:
        moved = base.to(config.device)
        with progress("encoding", len(split)) as advance:
            for batch in split.inputs.split(BATCH):
                yield moved.embed(batch.to(config.device)).cpu()
                advance(len(batch))
        moved.to("cpu")

    return Split(feature_cache.cached_rows(name, len(split), make), split.labels, split.domains)


def embed_shared(config: RunConfig, base: Base, shared: SharedData, seed: int) -> SharedData:
    """The shared subset as experts read it, with its distorted copies."""
    copies = (datasets.distorted_copy(shared.anchors, seed, number) for number in range(config.base.copies))
    anchors = [embed_split(config, base, some) for some in (shared.anchors, *copies)]
    return SharedData(datasets.concatenate(anchors), embed_split(config, base, shared.calibration))


EmbeddedSplits = tuple[Split, SharedData, Split]  # train, what is shared, validation for choices: as experts read them


def embed_splits(config: RunConfig, base: Base, data: Data, raw: SharedData, seed: int) -> EmbeddedSplits:
    """What the frozen base makes of the data."""
    train, validation = (embed_split(config, base, split) for split in (data.train, data.validation))
    choose, _ = datasets.split_validation(data, config.ownership.calibration, seed)
    return train, embed_shared(config, base, raw, seed), validation.only(choose)
