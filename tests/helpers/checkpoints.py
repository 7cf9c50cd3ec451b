"""Changed checkpoints, and state dicts in the style of other training scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

LAYERS = "--trainable-last-n-layers"
Change = Callable[[dict[str, Any], dict[str, str]], object]  # changes tensors and metadata in place


def alter_checkpoint(path: Path, out: Path, change: Change) -> Path:
    """Write a checkpoint with changed tensors or metadata, and return its path."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, out, metadata)
    return out


def foreign_state(prefix: str) -> dict[str, torch.Tensor]:
    """Return a state dict in the style of the papers' scripts: four layers, a head and a router."""
    layers = {
        f"{prefix}layers.{layer}.{part}.weight": torch.randn(8, 8)
        for layer in range(4)
        for part in ("self_attn.q_proj", "mlp.gate_proj", "input_layernorm")
    }
    outer = {f"{prefix}embed_tokens.weight": torch.randn(50, 8), f"{prefix}norm.weight": torch.randn(8)}
    return layers | outer | {"head.weight": torch.randn(5, 8), "router.net.0.weight": torch.randn(8, 8)}
