"""What a base computes, in a few lines that travel with every expert trained on it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from redx import pretrained
from redx.base import Base
from redx.config import RunConfig
from redx.data import text
from redx.encoders import Language
from redx.io import hashing
from redx.seeding import generator

SENTENCES = ("What is 12 plus 5?", "What is 40 minus 17 plus 8?", "The parcel arrived two days late.", "Ça va, 你好?")
SHOWN = 16  # features of each probe that are kept


def of(base: Base, config: RunConfig, classes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    """Base weights, backbone, tokenizer, feature settings, classes, and the features of a fixed probe batch."""
    found: dict[str, Any] = {"base weights": hashing.hash_tensors(base.tensors())}
    if isinstance(base.encoder, Language) and base.encoder.frozen:
        folder = pretrained.folder(config.backbone)
        tokenizer = [path for path in sorted(folder.iterdir()) if path.name.startswith(("tokenizer.json", "vocab."))]
        words = b"".join(path.read_bytes() for path in tokenizer)
        found |= {"backbone": pretrained.fingerprint(folder), "tokenizer": hashlib.sha256(words).hexdigest()[:16]}
        settings = {"reading": config.reading.model_dump(), "trunk": config.base.trunk.model_dump()}
        inputs = text.pack_texts(SENTENCES)
    else:
        found |= {"backbone": config.backbone, "tokenizer": None}
        settings = {"shape": shape}
        inputs = 255 * torch.rand((len(SENTENCES), *shape), generator=generator(0, "probe"))
    found["feature settings"] = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
    found["classes"] = hashlib.sha256("\n".join(classes).encode()).hexdigest()[:16]
    found["probe"] = [[round(value, 4) for value in row[:SHOWN].tolist()] for row in base.embed(inputs)]
    return found
