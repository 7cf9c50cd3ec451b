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
from redx.training.datasets import BATCH, SharedData, concatenate, distorted_copy, split_validation


@dataclass(frozen=True)
class EmbeddedSplits:
    """What experts and router are trained on, as features: training data, shared data, validation for choices."""

    train: Split
    shared: SharedData
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


def embed_shared(config: ModelConfig, base: Base, shared: SharedData, seed: int) -> SharedData:
    """Return the shared data as features; anchors include distorted copies where the settings ask for them."""
    copies = (distorted_copy(shared.anchors, seed, number) for number in range(config.base.copies))
    anchors = [embed_split(config, base, split) for split in (shared.anchors, *copies)]
    return SharedData(concatenate(anchors), embed_split(config, base, shared.calibration))


def embed_splits(config: ModelConfig, base: Base, data: Data, shared: SharedData, seed: int) -> EmbeddedSplits:
    """Return the training data, the shared data and validation for choices as features."""
    train, validation = (embed_split(config, base, split) for split in (data.train, data.validation))
    choices, _ = split_validation(data, config.ownership.calibration, seed)
    return EmbeddedSplits(train, embed_shared(config, base, shared, seed), validation.only(choices))
