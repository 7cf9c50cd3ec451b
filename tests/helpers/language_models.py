"""Tiny language models of real architectures, randomly initialised and saved as Hugging Face folders."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


def character_tokenizer(with_traps: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character.

    With traps it adds a [CLS] in front, and its file asks for truncation and padding.
    """
    characters = ["[UNK]", "[PAD]", "[CLS]", *string.ascii_letters, *string.digits, *" +-*/=?.,"]
    vocabulary = {character: index for index, character in enumerate(characters)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if with_traps:
        inner.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
        inner.enable_truncation(5)
        inner.enable_padding(length=9, pad_id=1, pad_token="[PAD]")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")


def save_qwen3(folder: Path, seed: int = 0, attention_bias: bool = False) -> Path:
    """Write a decoder with three blocks and D = 32 to a folder, and return the folder."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"attention_bias": attention_bias, "max_position_embeddings": 256}
    config = Qwen3Config(vocab_size=80, **SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, **options)
    return _save(Qwen3ForCausalLM(config), folder, with_traps=False)


def save_bert(folder: Path) -> Path:
    """Write an encoder with three blocks and D = 32 to a folder, and return the folder."""
    torch.manual_seed(0)
    return _save(BertModel(BertConfig(vocab_size=80, **SIZES, max_position_embeddings=64)), folder, with_traps=True)


def _save(model: Qwen3ForCausalLM | BertModel, folder: Path, with_traps: bool) -> Path:
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" in name.lower():  # so that a norm that is left out or applied twice changes the result
                weights.uniform_(0.5, 2)
    model.save_pretrained(folder)
    character_tokenizer(with_traps).save_pretrained(folder)
    return folder
