"""Fingerprint of a base: what it computes, in a few values that every expert carries along."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from redx.config import ModelConfig
from redx.data.text import pack_texts
from redx.io.hashing import hash_tensors
from redx.io.reading import read_bytes
from redx.models.backbones import hub
from redx.models.base import Base
from redx.models.encoder import ModuleEncoder
from redx.seeding import generator

PROBE_TEXTS = ("What is 12 plus 5?", "What is 40 minus 17 plus 8?", "The parcel arrived two days late.", "Ça va, 你好?")
PROBE_FEATURES = 16  # features of each probe input that are kept


def fingerprint_base(
    base: Base, config: ModelConfig, classes: tuple[str, ...], shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the fingerprint of a base.

    Parameters
    ----------
    base
        The frozen base.
    config
        Settings of the run: backbone, trunk, and what is read from a language model.
    classes
        The labels, in the order of the logits.
    shape
        Shape of one input, where inputs are not texts.

    Returns
    -------
    dict
        Hashes of the base's weights, the backbone, the tokenizer, the feature settings and the classes, and the
        features of a fixed probe batch, rounded to four digits.
    """
    fingerprint: dict[str, Any] = {"base weights": hash_tensors(base.tensors())}
    if base.encoder.reads_text:
        folder = hub.model_folder(config.backbone)
        tokenizer = [path for path in sorted(folder.iterdir()) if path.name.startswith(("tokenizer.json", "vocab."))]
        content = b"".join(read_bytes(path, advice="take it anew from where the model came") for path in tokenizer)
        fingerprint |= {"backbone": hub.hash_model(folder), "tokenizer": _short_hash(content)}
        plain = {"runtime"} if config.encoding.runtime == "torch" else set()  # as before there were others
        settings = {"encoding": config.encoding.model_dump(exclude=plain), "trunk": config.base.trunk.model_dump()}
        inputs = pack_texts(PROBE_TEXTS)
    else:
        own = isinstance(base.encoder, ModuleEncoder)
        fingerprint |= {"backbone": base.encoder.mark if own else config.backbone, "tokenizer": None}
        settings = {"shape": shape}
        inputs = 255 * torch.rand((len(PROBE_TEXTS), *shape), generator=generator(0, "probe"))
    fingerprint["feature settings"] = _short_hash(repr(settings).encode())
    fingerprint["classes"] = _short_hash("\n".join(classes).encode())
    with torch.no_grad():
        read = inputs if isinstance(base.encoder, ModuleEncoder) else base.encoder.read(inputs)
        features = (base.encoder(read.to(base.mean.device)) - base.mean) / base.scale
    fingerprint["probe"] = [[round(value, 4) for value in row[:PROBE_FEATURES].tolist()] for row in features]
    return fingerprint


def base_differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return which entries of two fingerprints differ; features of the probe batch may differ by rounding."""
    differences = [name for name in ours if name != "probe" and theirs.get(name) != ours[name]]
    probes = theirs.get("probe"), ours.get("probe")
    if probes[0] is not None and probes[1] is not None and not differences:
        one, other = (torch.tensor(probe) for probe in probes)
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            differences.append("features of the probe batch")
    return differences


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
