"""The frozen causal language model that adapters were trained on: loading it, its tokenizer and its fingerprint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redx.models.backbones.causal import load_causal_model
from redx.models.backbones.hub import hash_model


@dataclass(frozen=True)
class BaseLM:
    """A causal language model in float32 with its tokenizer.

    Attributes
    ----------
    name
        Name or folder, as the user gave it.
    folder
        Folder of the model.
    model
        The model of transformers, in evaluation mode.
    tokenizer
        Its tokenizer.
    """

    name: str
    folder: Path
    model: Any
    tokenizer: Any

    @property
    def context(self) -> int:
        """Largest number of tokens that the model reads."""
        limits = (getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length)
        return int(min(limit for limit in (*limits, math.inf) if limit))

    @property
    def width(self) -> int:
        """Number of values of a hidden state."""
        return int(self.model.config.hidden_size)

    @property
    def end(self) -> int:
        """The token that ends a text; the last of the vocabulary where the tokenizer has none."""
        token = self.tokenizer.eos_token_id
        return self.model.config.vocab_size - 1 if token is None else int(token)

    @property
    def fingerprint(self) -> str:
        """A hash of configuration, tokenizer and weights."""
        return hash_model(self.folder)


def load_base(name: str, device: str = "cpu") -> BaseLM:
    """Return a causal language model.

    Parameters
    ----------
    name
        An embedded model, a folder or a name on the hub, as `model_folder` takes it.
    device
        Where the model runs.

    Returns
    -------
    BaseLM
        The model in float32 and in evaluation mode; its weights require no gradient.
    """
    folder, model, tokenizer = load_causal_model(name)
    return BaseLM(name, folder, model.requires_grad_(False).eval().to(device), tokenizer)
