"""Features of the frozen base: computed once per split and set of weights, then read from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from redx.config import ModelConfig
from redx.data.dataset import Data, Split
from redx.io.feature_cache import cached_rows
from redx.io.hardware import usable_device
from redx.io.hashing import hash_tensors
from redx.io.progress import progress
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.training.datasets import BATCH, concatenate, distorted_copy, select_anchors, split_validation


@dataclass(frozen=True)
class EmbeddedSplits:
    """What experts and router are trained on, as features: training data, shared subset, validation for choices."""

    train: Split
    anchors: Split
    validation: Split


def embed_split(config: ModelConfig, base: Base, split: Split) -> Split:
    """Return a split with the base's features as inputs, (N, E)."""
    if type(base.encoder) is IdentityEncoder:
        return split
    name = hash_tensors(base.tensors(), base.encoder.mark, split.digest())

    def encode() -> Iterator[Tensor]:
        if not base.encoder.reads_text:
            yield from _encode(config, base, split.inputs)
            return
        inputs, index = distinct_rows(split.inputs)  # questions are often repeated, and a trunk may be large
        features = torch.cat(list(_encode(config, base, inputs)))
        yield from (features[rows] for rows in index.split(BATCH))

    return Split(cached_rows(name, len(split), encode), split.labels, split.domains)


def _encode(config: ModelConfig, base: Base, inputs: Tensor) -> Iterator[Tensor]:
    """Yield the features of inputs in batches, (B, E)."""
    device = usable_device(config.device)
    moved = base.to(device)
    with progress("encoding", len(inputs)) as advance:
        for batch in inputs.split(BATCH):
            yield moved.embed(batch.to(device)).cpu()
            advance(len(batch))
    moved.to("cpu")


def distinct_rows(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows in the order in which they first occur, (M, ...), and the index of every row, (N,).

    Examples
    --------
    >>> distinct_rows(torch.tensor([[7], [5], [7]]))
    (tensor([[7],
            [5]]), tensor([0, 1, 0]))
    """
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(row.tobytes(), len(numbers)) for row in inputs.numpy()]
    first = dict(zip(reversed(index), range(len(index) - 1, -1, -1), strict=True))
    return inputs[[first[number] for number in range(len(numbers))]], torch.tensor(index, dtype=torch.long)


def embed_anchors(config: ModelConfig, base: Base, anchors: Split, seed: int) -> Split:
    """Return the shared subset as features, followed by distorted copies where the settings ask for them."""
    copies = (distorted_copy(anchors, seed, number) for number in range(config.base.copies))
    return concatenate([embed_split(config, base, split) for split in (anchors, *copies)])


def without_copies(config: ModelConfig, anchors: Split) -> Split:
    """Return the shared subset that `embed_anchors` returned, without the distorted copies."""
    return anchors.only(torch.arange(len(anchors) // (1 + config.base.copies)))


def embed_splits(config: ModelConfig, base: Base, data: Data, seed: int) -> EmbeddedSplits:
    """Return the training data, the shared subset and validation for choices as features."""
    train, validation = (embed_split(config, base, split) for split in (data.train, data.validation))
    choices, _ = split_validation(data, config.ownership.calibration, seed)
    anchors = embed_anchors(config, base, select_anchors(data, config, seed), seed)
    return EmbeddedSplits(train, anchors, validation.only(choices))
