"""Training of one adapter: LoRA on the text of one domain, with the loss over every next token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from redx.adapters.base import BaseLM
from redx.config import LoraTraining
from redx.io.progress import progress
from redx.seeding import generator

HEAD_ROWS = 64  # positions whose vocabulary-sized scores exist at once
ALL_LINEAR = "all-linear"


def train_adapter(base: BaseLM, blocks: Tensor, settings: LoraTraining, seed: int, title: str) -> tuple[Any, float]:
    """Train an adapter on the text of one domain.

    Parameters
    ----------
    base
        The frozen model; it is wrapped by peft, and `unload` of the result gives it back.
    blocks
        Tokens of the training documents, (N, T).
    settings
        Rank, steps, learning rate.
    seed
        Decides the initial weights and the order of the blocks.
    title
        Shown while it trains.

    Returns
    -------
    tuple of PeftModel and float
        The model with the trained adapter, and the mean loss of the last tenth of the steps.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, task_type="CAUSAL_LM", **_targets(base, settings.first_block)
    )
    with torch.random.fork_rng():
        torch.manual_seed(generator(seed, "adapter", title).initial_seed())
        model = get_peft_model(base.model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=settings.lr, weight_decay=0.0)
    warmup = max(1, settings.steps // 10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, warmup, settings.steps))
    draw, order, losses = generator(seed, "blocks", title), torch.empty(0, dtype=torch.long), []
    with progress(f"training {title}", settings.steps) as advance:
        for _ in range(settings.steps):
            while len(order) < settings.batch:
                order = torch.cat([order, torch.randperm(len(blocks), generator=draw)])
            rows, order = order[: settings.batch], order[settings.batch :]
            loss = next_token_loss(model, blocks[rows])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            scheduler.step()
            losses.append(loss.item())
            advance(1)
    last = losses[-max(1, settings.steps // 10) :]
    return model.eval(), sum(last) / len(last)


def _targets(base: BaseLM, first_block: int) -> dict[str, Any]:
    """Return the settings of peft for all linear layers but the head, from one block on."""
    if not first_block:
        return {"target_modules": ALL_LINEAR}
    head, depth = base.model.get_output_embeddings(), base.model.config.num_hidden_layers
    linear = [name for name, module in base.model.named_modules() if isinstance(module, Linear) and module is not head]
    return {
        "target_modules": sorted({name.rpartition(".")[2] for name in linear}),  # with blocks peft takes only a list
        "layers_to_transform": list(range(min(first_block, depth - 1), depth)),
    }


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of every token but the first of each row; scores are made for few rows at a time.

    Parameters
    ----------
    model
        A causal language model, or a PeftModel of one.
    tokens
        Rows of equal length, (N, T).
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    inner = getattr(causal, causal.base_model_prefix)
    states = inner(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)  # (N·(T-1), D)
    targets = tokens[:, 1:].flatten()

    def part(rows: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(head(rows), wanted, reduction="sum")

    sums = [
        checkpoint(part, rows, wanted, use_reentrant=False)
        for rows, wanted in zip(states.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True)
    ]
    total: Tensor = torch.stack([value for value in sums if isinstance(value, Tensor)]).sum()
    return total / len(targets)


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter of a PeftModel as peft does: adapter_config.json and adapter_model.safetensors."""
    model.save_pretrained(str(folder), safe_serialization=True)


def _rate(step: int, warmup: int, steps: int) -> float:
    """Return the share of the peak learning rate: a linear rise, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
