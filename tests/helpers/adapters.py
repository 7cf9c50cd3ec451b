"""Random adapters for tiny language models, saved as peft saves them; and a tiny run of adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from transformers import AutoModelForCausalLM

import redx
from helpers.language_models import save_qwen3
from redx.adapters.base import load_base
from redx.adapters.library import OWNERSHIP, add_adapter
from redx.config import RouterConfig
from redx.io.files import write_tensors
from redx.models.router import build_router

ALPHABETS = {"digits": "0123456789+=", "lower": "abcdefghij ", "upper": "KLMNOPQRST "}  # of three domains


TARGETS: dict[str, Any] = {"target_modules": ["q_proj", "v_proj", "up_proj"], "task_type": "CAUSAL_LM"}


def save_adapter(model: Path, folder: Path, seed: int, rank: int = 2, **options: Any) -> Path:
    """Write a LoRA adapter with random weights that changes the logits visibly, and return its folder."""
    return save_any_adapter(model, folder, seed, LoraConfig(r=rank, lora_alpha=4, **{**TARGETS, **options}))


def save_any_adapter(model: Path, folder: Path, seed: int, config: PeftConfig) -> Path:
    """Write an adapter of any method with random weights, and return its folder."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted: Any = get_peft_model(base, config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if adapted.base_model.prefix in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw))
    adapted.save_pretrained(str(folder))
    return folder


def write_documents(path: Path, count: int = 40) -> Path:
    """Write documents of three alphabets to a table."""
    draw = torch.Generator().manual_seed(0)
    lines = []
    for domain, letters in ALPHABETS.items():
        for _ in range(count):
            picks = torch.randint(len(letters), (60,), generator=draw).tolist()
            lines.append(json.dumps({"text": "".join(letters[pick] for pick in picks), "domain": domain}))
    path.write_text("\n".join(lines))
    return path


def run_tiny_adapters(folder: Path) -> Path:
    """Train three adapters of a tiny model in a new folder, evaluate them, and return the run folder."""
    folder.mkdir()
    model = save_qwen3(folder / "model")
    data = write_documents(folder / "texts.jsonl")
    return redx.run("adapters", "tiny", out=folder / "run", train=True, backbone=str(model), data=data).folder


def save_library(folder: Path, names: tuple[str, ...] = ("a", "b", "c")) -> Path:
    """Write a tiny model and a library of random adapters with random ownership scores; return the library's folder."""
    folder.mkdir(exist_ok=True)
    model = save_qwen3(folder / "model")
    base, run = load_base(str(model)), folder / "run"
    draw = torch.Generator().manual_seed(1)
    for seed, name in enumerate(names):
        add_adapter(run, save_adapter(model, folder / name, seed), base, name)
        score = build_router(base.width, 2, RouterConfig(shape="linear"))
        with torch.no_grad():
            for tensor in score.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=draw))
        score.deviation.fill_(2.0)  # type: ignore[operator, union-attr]
        score.mean.fill_(0.1)  # type: ignore[operator, union-attr]
        write_tensors(run / "adapters" / name / OWNERSHIP, score.state_dict())
    return run
