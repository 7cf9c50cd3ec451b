"""What a base computes, in a few lines that travel with every expert trained on it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from redx.config import RunConfig
from redx.data import text
from redx.io import hashing
from redx.models.backbones import hub
from redx.models.base import Base
from redx.models.encoder import TextEncoder
from redx.seeding import generator

SENTENCES = ("What is 12 plus 5?", "What is 40 minus 17 plus 8?", "The parcel arrived two days late.", "Ça va, 你好?")


SHOWN = 16  # features of each probe that are kept


def fingerprint_base(base: Base, config: RunConfig, classes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    """Base weights, backbone, tokenizer, feature settings, classes, and the features of a fixed probe batch."""
    found: dict[str, Any] = {"base weights": hashing.hash_tensors(base.tensors())}
    if isinstance(base.encoder, TextEncoder) and base.encoder.frozen:
        folder = hub.model_folder(config.backbone)
        tokenizer = [path for path in sorted(folder.iterdir()) if path.name.startswith(("tokenizer.json", "vocab."))]
        words = b"".join(path.read_bytes() for path in tokenizer)
        found |= {"backbone": hub.hash_model(folder), "tokenizer": hashlib.sha256(words).hexdigest()[:16]}
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


def base_differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What differs between two bases, in words; figures of the probe may differ by rounding."""
    found = [name for name in ours if name != "probe" and theirs.get(name) != ours[name]]
    probes = theirs.get("probe"), ours.get("probe")
    if probes[0] is not None and probes[1] is not None and not found:
        one, other = (torch.tensor(probe) for probe in probes)
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            found.append("features of the probe batch")
    return found
