"""Trunks on frozen features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from redx.data.text import pack_texts
from redx.models.encoder import TextEncoder, build_encoder
from redx.runs.presets import configure

TEXTS = ["What is 37 plus 12?", "What is 4 minus 1?", "What is 4 minus 1?", "ä 10 − 3"]


SHAPES = {"mlp": "mean", "sum": "tokens", "blocks": "mean"}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))


def small(qwen: Path, shape: str = "mlp") -> dict[str, Any]:
    """What makes a run of seconds out of the quick preset."""
    reading = {"blocks": [1, 2], "pooling": SHAPES[shape], "trunk": shape, "train_blocks": 1}
    return {"backbone": str(qwen), "limit": 600, "epochs": {"base": 2, "experts": 1, "router": 2}} | reading


def test_top_blocks_on_kept_states_are_the_whole_model(qwen: Path) -> None:
    encoder = build_encoder(configure("addition", "quick", **small(qwen, "blocks")))
    found = encoder(pack_texts(TEXTS))
    model = AutoModel.from_pretrained(qwen).eval()
    assert isinstance(encoder, TextEncoder)
    for row, text in zip(found, TEXTS, strict=True):
        ids = encoder.prefix.tokenizer(text, return_tensors="pt")["input_ids"]
        torch.testing.assert_close(row, model(ids).last_hidden_state.mean(1)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_alone_is_read_as_in_company(qwen: Path, shape: str) -> None:
    encoder = build_encoder(configure("addition", "quick", **small(qwen, shape)))
    assert isinstance(encoder, TextEncoder)
    encoder.trunk.fit(encoder.read(pack_texts([f"What is {a} plus {a * 7 % 50}?" for a in range(1, 50)])))
    company, alone = encoder(pack_texts(TEXTS)), torch.cat([encoder(pack_texts([text])) for text in TEXTS])
    torch.testing.assert_close(company, alone, atol=1e-5, rtol=1e-5)
