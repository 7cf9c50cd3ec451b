"""Trunks: standardised features, sums over tokens, and the top blocks of a language model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from helpers.runs import text_settings
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.models.encoder import TextEncoder, build_encoder
from redx.models.trunks import MLPTrunk, TokenSum, load_top_blocks, token_mean
from redx.runs.presets import configure
from redx.seeding import generator

TEXTS = ["What is 37 plus 12?", "What is 4 minus 1?", "What is 4 minus 1?", "ä 10 − 3"]

pytestmark = pytest.mark.usefixtures("own_cache")


def text_encoder(qwen: Path, shape: str) -> TextEncoder:
    encoder = build_encoder(configure("addition", "quick", **text_settings(qwen, shape)))
    assert isinstance(encoder, TextEncoder)
    return encoder


def test_top_blocks_on_cached_states_compute_what_the_whole_model_does(qwen: Path) -> None:
    encoder = text_encoder(qwen, "blocks")
    features = encoder(encoder.read(pack_texts(TEXTS)))
    model = AutoModel.from_pretrained(qwen).eval()
    for row, text in zip(features, TEXTS, strict=True):
        ids = encoder.frozen.tokenizer(text, return_tensors="pt")["input_ids"]
        torch.testing.assert_close(row, model(ids).last_hidden_state.mean(1)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", ["mlp", "sum", "blocks"])
def test_the_features_of_a_text_do_not_depend_on_the_other_texts(qwen: Path, shape: str) -> None:
    encoder = text_encoder(qwen, shape)
    encoder.fit(encoder.read(pack_texts([f"What is {a} plus {a * 7 % 50}?" for a in range(1, 50)])))
    together, alone = (
        encoder(encoder.read(pack_texts(TEXTS))),
        torch.cat([encoder(encoder.read(pack_texts([text]))) for text in TEXTS]),
    )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("append_features", [True, False])
def test_an_mlp_trunk_standardises_and_may_pass_its_inputs_on(append_features: bool) -> None:
    x = 5 * torch.randn(100, 6, generator=generator(0, "x")) + 3
    trunk = MLPTrunk(6, hidden=8, depth=2, append_features=append_features)
    trunk.fit(x)
    features = trunk(x)
    assert features.shape == (100, 8 + 6 * append_features)
    if append_features:
        assert torch.allclose(features[:, 8:].mean(0), torch.zeros(6), atol=1e-5)
        assert torch.allclose(features[:, 8:].std(0), torch.ones(6), atol=1e-4)


def test_a_token_sum_ignores_rows_of_zeros() -> None:
    x = torch.randn(3, 5, 6, generator=generator(0, "x"))
    x[1, 2:] = 0  # a text of two tokens
    trunk = TokenSum(6, hidden=8, depth=1, append_features=True)
    trunk.fit(x)
    features = trunk(x)
    assert features.shape == (3, trunk.width + 8)
    assert torch.allclose(features[1], trunk(x[1:2, :2])[0], atol=1e-5)


def test_the_code_of_a_token_sum_is_periodic() -> None:
    trunk = TokenSum(6, hidden=8, depth=1, append_features=False)
    values = torch.tensor([0.0, 0.5])
    assert torch.allclose(trunk.code(values), trunk.code(values + trunk.period), atol=1e-4)
    assert not torch.allclose(trunk.code(values)[0], trunk.code(values)[1], atol=0.1)


def test_the_mean_over_tokens_leaves_out_padding() -> None:
    x, tokens = torch.tensor([[[1.0], [3.0], [100.0]]]), torch.tensor([[True, True, False]])
    assert token_mean(x, tokens).tolist() == [[2.0]]


def test_more_top_blocks_than_the_model_has_are_refused(qwen: Path) -> None:
    with pytest.raises(RedxError, match="has 3 blocks; train fewer"):
        load_top_blocks(qwen, AutoConfig.from_pretrained(qwen), 3)
