"""Encoders: trunks on the user's features, cached texts, and backbones that do not fit the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import text_settings
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.models.encoder import FeatureEncoder, TextEncoder, build_encoder
from redx.runs.presets import configure
from redx.seeding import generator


@pytest.mark.parametrize("shape", ["linear", "mlp"])
def test_an_encoder_of_the_users_features(shape: str) -> None:
    config = configure("features", "quick", file="x.npz", trunk=shape)
    encoder = build_encoder(config)
    assert isinstance(encoder, FeatureEncoder)
    assert not encoder.reads_text
    x = torch.randn(50, 7, generator=generator(0, "x")) * torch.tensor([1.0, 1000, 0.001, 1, 1, 0, 0]) + 5
    x[0, 6] = 6  # differs in one of fifty examples
    encoder.fit(encoder.read(x))
    features = encoder(x)
    assert features.shape == (50, 7 if shape == "linear" else 128 + 7)
    assert encoder.width == (7 if shape == "linear" else 128)
    assert features.isfinite().all()
    assert encoder(x + 3)[:, -2].abs().max() == 0  # a constant feature is not read
    assert encoder(x)[:, -1].abs().max() <= 10.5  # a nearly constant feature stays small
    other = build_encoder(config)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), features)
    with pytest.raises(RedxError, match=r"reads 7 features an example; give \(N, 7\), not \(50, 6\)"):
        other(x[:, :6])


def test_an_encoder_of_texts_runs_its_frozen_part_once(qwen: Path, own_cache: Path) -> None:
    encoder = build_encoder(configure("addition", "quick", **text_settings(qwen)))
    assert isinstance(encoder, TextEncoder)
    assert encoder.reads_text
    inputs = pack_texts(["1 plus 2", "3 plus 4", "1 plus 2"])
    encoder.prepare([inputs, inputs[:1]])
    assert encoder.frozen.encoded_texts == 2
    states = encoder.read(inputs)
    assert encoder.frozen.encoded_texts == 2
    encoder.fit(states)
    assert encoder.mark == encoder.frozen.cache.folder.name
    assert not any(name.startswith("frozen") for name in encoder.state_dict())


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({"blocks": [1, -1], "trunk": "linear"}, slice(-32, None)),
        ({"blocks": [-1], "trunk": "linear"}, slice(None)),
        ({"blocks": [1, -1], "trunk": "linear", "pooling": "both"}, slice(None)),
        ({"blocks": [1, -1], "trunk": "mlp"}, slice(None)),
    ],
)
def test_abstention_compares_the_last_block_where_several_are_read(
    bert: Path, changes: dict[str, Any], compared: slice
) -> None:
    assert build_encoder(configure("intents", backbone=str(bert), **changes)).abstention_features == compared
    assert build_encoder(configure("features", file="x.npz")).abstention_features == slice(None)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("features", {"backbone": "minilm-l6"}, "leave out --backbone"),
        ("features", {"trunk": "sum"}, "choose --trunk linear or mlp"),
        ("jsonl", {"backbone": "features"}, "reads text, which the backbone features cannot"),
        ("jsonl", {"backbone": "none"}, "reads text, which the backbone none cannot"),
    ],
)
def test_backbones_that_do_not_fit_the_task_are_refused(task: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        build_encoder(configure(task, "quick", **changes))
