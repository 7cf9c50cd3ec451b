"""Encoders: trunks on the user's features, and backbones that do not fit the task."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from redx.errors import RedxError
from redx.models.encoder import TextEncoder, build_encoder
from redx.runs.presets import configure
from redx.seeding import generator


@pytest.mark.parametrize("shape", ["linear", "mlp"])
def test_a_base_on_given_features(shape: str) -> None:
    config = configure("features", "quick", file="x.npz", trunk=shape)
    encoder = build_encoder(config)
    assert isinstance(encoder, TextEncoder)
    x = torch.randn(50, 7, generator=generator(0, "x")) * torch.tensor([1.0, 1000, 0.001, 1, 1, 0, 0]) + 5
    x[0, 6] = 6  # one of fifty
    encoder.trunk.fit(x)
    said = encoder(x)
    assert said.shape == (50, 7 if shape == "linear" else 128 + 7)
    assert said.isfinite().all()
    assert encoder(x + 3)[:, -2].abs().max() == 0  # a feature that never varied is not read
    assert encoder(x)[:, -1].abs().max() <= 10.5  # one that hardly did stays small
    other = build_encoder(config)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), said)
    with pytest.raises(RedxError, match=r"reads 7 features an example; give \(N, 7\), not \(50, 6\)"):
        other(x[:, :6])


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("features", {"backbone": "minilm-l6"}, "leave out --backbone"),
        ("features", {"trunk": "sum"}, "choose --trunk linear or mlp"),
        ("jsonl", {"backbone": "features"}, "for the task 'features' alone"),
        ("jsonl", {"backbone": "none"}, "reads text, which none cannot"),
    ],
)
def test_backbones_that_do_not_fit(name: str, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RedxError, match=told):
        build_encoder(configure(name, "quick", **changes))
