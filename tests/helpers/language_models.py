"""Tiny language models of real kinds, randomly initialised and saved as any Hugging Face folder is."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


def tokenizer(trap: bool) -> PreTrainedTokenizerFast:
    """One token a character; with `trap`, a [CLS] before, and a file that asks for cutting and filling up."""
    signs = ["[UNK]", "[PAD]", "[CLS]", *string.ascii_letters, *string.digits, *" +-*/=?.,"]
    inner = Tokenizer(models.WordLevel({sign: at for at, sign in enumerate(signs)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if trap:
        inner.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
        inner.enable_truncation(5)
        inner.enable_padding(length=9, pad_id=1, pad_token="[PAD]")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")


def qwen3(folder: Path, seed: int = 0) -> Path:
    """A decoder with three blocks, D = 32, in a folder."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=80, **SIZES, num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=True
    )
    return save(Qwen3ForCausalLM(config), folder, trap=False)


def bert(folder: Path) -> Path:
    """An encoder with three blocks, D = 32, in a folder."""
    torch.manual_seed(0)
    return save(BertModel(BertConfig(vocab_size=80, **SIZES, max_position_embeddings=64)), folder, trap=True)


def save(model: Qwen3ForCausalLM | BertModel, folder: Path, trap: bool) -> Path:
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" in name.lower():  # else a norm left out or done twice would hardly show
                weights.uniform_(0.5, 2)
    model.save_pretrained(folder)
    tokenizer(trap).save_pretrained(folder)
    return folder
