"""Features of the frozen base: computed once per split and set of weights, then read from the cache."""

from __future__ import annotations

from pathlib import Path

import torch

from helpers.models import DOMAINS, changed_base, draw_features, identity_base
from redx.data.dataset import Data, Split
from redx.models.backbones.base import IdentityEncoder
from redx.runs.presets import configure
from redx.seeding import generator
from redx.training import datasets
from redx.training.features import embed_anchors, embed_split, embed_splits, without_copies

FEATURES = configure("features", "quick", file="x.npz")


class CountingEncoder(IdentityEncoder):
    """Counts the examples that go through it."""

    examples = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.examples += len(x)
        return x.flatten(1) + 1


def test_features_are_computed_once_for_the_same_base_and_data(own_cache: Path) -> None:
    encoder = CountingEncoder()
    base, split = changed_base(encoder=encoder), draw_features(30)
    first, again = (embed_split(FEATURES, base, split) for _ in range(2))
    assert encoder.examples == 30
    assert torch.equal(first.inputs, split.inputs + 1)
    assert torch.equal(again.inputs, first.inputs)
    assert torch.equal(first.labels, split.labels)
    embed_split(FEATURES, changed_base(encoder=base.encoder, bias=base.bias + 1), split)
    assert encoder.examples == 60
    embed_split(FEATURES, base, split.only(torch.arange(10)))
    assert encoder.examples == 70


def test_a_repeated_text_is_encoded_once(own_cache: Path) -> None:
    class TextCounter(CountingEncoder):
        reads_text = True

    encoder = TextCounter()
    base, split = changed_base(encoder=encoder), draw_features(30)
    order = torch.cat([torch.arange(30), torch.tensor([29, 3, 3])])
    assert torch.equal(embed_split(FEATURES, base, split.only(order)).inputs, split.inputs[order] + 1)
    assert encoder.examples == 30


def test_without_a_backbone_the_inputs_are_the_features(own_cache: Path) -> None:
    split = draw_features(5)
    assert embed_split(configure("toy", "quick"), identity_base(), split) is split
    assert not own_cache.exists()


def test_all_splits_are_embedded_with_validation_for_choices_only(own_cache: Path) -> None:
    splits = draw_features(200), draw_features(60, 1), draw_features(10, 2)
    data = Data(*splits, tuple(DOMAINS), tuple(map(str, range(10))), "disjoint", 0.0)
    base = changed_base(encoder=CountingEncoder())
    anchors = datasets.select_anchors(data, FEATURES, seed=0)
    embedded = embed_splits(FEATURES, base, data, seed=0)
    choices, _ = datasets.split_validation(data, FEATURES.ownership.calibration, 0)
    assert torch.equal(embedded.train.inputs, data.train.inputs + 1)
    assert torch.equal(embedded.validation.inputs, data.validation.inputs[choices] + 1)
    assert torch.equal(embedded.anchors.inputs, anchors.inputs + 1)


def test_distorted_copies_join_the_anchors(own_cache: Path) -> None:
    images = draw_features(4)
    pixels = torch.randint(255, (4, 28, 28), generator=generator(0, "pixels")).to(torch.uint8)
    split = Split(pixels, images.labels, images.domains)
    base = changed_base(encoder=CountingEncoder(), mean=torch.zeros(28**2), scale=torch.ones(28**2))
    copies = FEATURES.model_copy(update={"base": FEATURES.base.model_copy(update={"copies": 2})})
    embedded = embed_anchors(copies, base, split, seed=0)
    assert len(embedded) == 12
    assert torch.equal(without_copies(copies, embedded).inputs, split.inputs.flatten(1).float() + 1)
