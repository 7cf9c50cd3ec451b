"""Train banks of experts: one expert per domain, ownership scores, pooled heads, and joint training for comparison."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from redx.config import BankConfig, BankId, ModelConfig, OwnershipConfig, TrainingConfig
from redx.data.dataset import Split
from redx.models.banks import (
    Bank,
    MLPBank,
    build_bank,
    fold_standardisation,
    initialise_bank,
    lift_new_classes,
    run_bank,
    split_bank,
)
from redx.models.base import Base
from redx.models.value_bank import ValueBank
from redx.seeding import generator
from redx.training.closed_form import fit_bank
from redx.training.datasets import ExpertData
from redx.training.expert_ridge import fit_experts, fit_scorers
from redx.training.loop import draw_rows, dropout, gather_rows, train
from redx.training.value_ridge import fit_values

OWNERSHIP = BankId("residual", "ownership")  # ownership scores by class are trained like residual experts
NEW_CLASS_WEIGHT = 0.5  # routing weight at which an expert with new classes has to be right in its own domain
KEPT_MARGIN = 0.9  # share of the base's margin that the anchor `margin` asks an expert to keep


def train_bank(
    bank_id: BankId,
    config: BankConfig,
    datasets: Sequence[ExpertData],
    base: Base,
    seed: int | Sequence[int],
    unit: float,
    device: str = "cpu",
) -> Bank:
    """Train one expert per dataset; expert k depends only on its own dataset and name.

    Parameters
    ----------
    bank_id
        Name of the bank. Its form decides what is trained: a correction of the base, or logits of its own.
    config
        Architecture, anchor term and training settings.
    datasets
        The data of each expert; inputs are features, (N, E).
    base
        The frozen base.
    seed
        Decides initial weights and batches; one for all experts, or one for each, so that experts of several seeds
        train as one stack.
    unit
        For a regression, what one unit of the answer is in the network's output.
    device
        Where to train; whatever comes in or goes out is on the CPU, and so are all random draws.

    Returns
    -------
    Bank
        The trained experts as one stack.
    """
    datasets, base = [data.to(device) for data in datasets], base.on_features(device)
    bank = build_bank(config, len(datasets), base).to(device)
    if isinstance(bank, ValueBank) and config.fit == "ridge":
        return fit_values(bank.cpu(), config, datasets)
    seeds = [seed] * len(datasets) if isinstance(seed, int) else list(seed)
    if isinstance(bank, MLPBank) and config.fit == "ridge":
        return fit_experts(bank, config, datasets, base, seeds, bank_id).cpu()
    names = [(number, data.name) for number, data in zip(seeds, datasets, strict=True)]
    initialise_bank(bank, [generator(number, "expert", bank_id, name) for number, name in names])
    weight = 1.0
    if base.outputs > base.known and bank_id.corrects_base:
        lift_new_classes(bank, _levels(datasets, base), base.outputs - base.known)
        weight = 1.0 if bank_id == OWNERSHIP else NEW_CLASS_WEIGHT
    own, anchors = [data.own for data in datasets], [data.anchors for data in datasets]
    shape = len(own), 1, base.width
    mean, deviation = torch.zeros(shape, device=device), torch.ones(shape, device=device)
    if config.standardise:
        mean = torch.stack([split.inputs.mean(0, keepdim=True) for split in own])
        deviation = torch.stack([split.inputs.std(0, keepdim=True).clamp_min(1e-6) for split in own])
    draws = [generator(number, "anchors", bank_id, name) for number, name in names]

    def outputs(x: Tensor) -> Tensor:
        return bank(dropout((x - mean) / deviation, config.dropout, draws))

    def loss(rows: Tensor) -> Tensor:
        x, labels = gather_rows(own, rows)  # (K, B, E), (K, B)
        if isinstance(bank, ValueBank):
            total = bank.errors(x, labels)
        else:
            start = base.classify(x) if bank_id.corrects_base else 0.0
            total = losses(start + weight * outputs(x), labels, unit, config.smoothing)
        if config.anchor == "none":
            return total
        x, labels = gather_rows(anchors, draw_rows(anchors, rows.shape[1], draws))
        if isinstance(bank, ValueBank) and (config.anchor == "truth" or not bank.shift):
            return total + config.anchor_weight * bank.errors(x, labels)
        start = base.classify(x) if bank_id.corrects_base else None
        return total + config.anchor_weight * anchor_loss(config.anchor, start, outputs(x), labels)

    def score(k: int) -> float:
        split = datasets[k].validation if len(datasets[k].validation) else datasets[k].own
        with torch.no_grad():
            start = base.classify(split.inputs) if bank_id.corrects_base else 0.0
            logits = run_bank(bank, split.inputs)[:, k] + start
        return -float(losses(logits[None], split.labels[None], unit))

    batches = [generator(number, "batches", bank_id, name) for number, name in names]
    title = f"seed {', '.join(map(str, dict.fromkeys(seeds)))}: {bank_id}"
    learners = [data.name for data in datasets]
    train(bank, loss, [len(split) for split in own], batches, config.training, title, score, learners)
    if isinstance(bank, MLPBank) and config.standardise:
        fold_standardisation(bank, mean, deviation)
    return bank.cpu()


def _levels(datasets: Sequence[ExpertData], base: Base) -> Tensor:
    """Return how far the base's mean logit lies above its floor on the data of each expert, (K,).

    There the new classes begin: among the classes that the base knows, neither first nor last.
    """
    with torch.no_grad():
        logits = [base.classify(data.own.inputs) for data in datasets]
    return torch.stack([values[:, : base.known].mean() - values[:, base.known :].mean() for values in logits])


def losses(logits: Tensor, labels: Tensor, unit: float, smoothing: float = 0.0) -> Tensor:
    """Return the loss of each learner, (K, B, C) and (K, B) to (K,): squared error for a regression (C = 1), else
    cross-entropy.
    """
    if logits.shape[-1] == 1:
        return (logits[..., 0] - labels * unit).square().mean(1)
    flat = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=smoothing)
    return flat.view(labels.shape).mean(1)


def anchor_loss(anchor: str, start: Tensor | None, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the penalty for changing the base's answers outside an expert's domain: (K, B, C) to (K,).

    Parameters
    ----------
    anchor
        `truth`: cross-entropy with the labels. `size`: mean square of the residual. `margin`: how far the margin of
        the true class falls below 90 % of the base's margin.
    start
        Logits of the base under a correction; None for a standalone head, which can only be trained on the labels.
    outputs
        The experts' residuals, or the logits of standalone heads.
    labels
        The true classes, (K, B).
    """
    if start is None or anchor == "truth":
        return losses(outputs if start is None else start + outputs, labels, 1.0)
    if anchor == "size":
        return outputs.square().mean((1, 2))
    return (KEPT_MARGIN * _margin(start, labels) - _margin(start + outputs, labels)).clamp_min(0).mean(1)


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the lead of the true class over the best other class: (K, B, C) to (K, B)."""
    index = labels[..., None]
    best_other = logits.scatter(-1, index, -torch.inf).amax(-1)
    return logits.gather(-1, index)[..., 0] - best_other


def train_ownership(
    config: OwnershipConfig, datasets: Sequence[ExpertData], base: Base, seed: int, device: str = "cpu"
) -> list[dict[str, Tensor]]:
    """Train every expert's ownership score; return its tensors."""
    if config.kind == "classes":
        scorers = split_bank(train_bank(OWNERSHIP, config.bank, datasets, base, seed, 1.0, device))
        classes = [torch.zeros(base.outputs).index_fill(0, data.own.labels.unique(), 1) for data in datasets]
        return [scorer | {"classes": own} for scorer, own in zip(scorers, classes, strict=True)]
    return split_bank(train_scorers(config.bank, datasets, base, seed, device))


def train_scorers(
    config: BankConfig, datasets: Sequence[ExpertData], base: Base, seed: int, device: str = "cpu"
) -> MLPBank:
    """Train one binary score per expert: its own domain against its anchors."""
    datasets = [data.to(device) for data in datasets]
    names = [data.name for data in datasets]
    scorers = MLPBank(len(datasets), [base.width, config.hidden, 1]).to(device)
    if config.fit == "ridge":
        return fit_scorers(scorers, config, datasets, seed).cpu()
    initialise_bank(scorers, [generator(seed, "ownership", name) for name in names])
    draws = [generator(seed, "ownership anchors", name) for name in names]
    own, anchors = [data.own for data in datasets], [data.anchors for data in datasets]

    def loss(rows: Tensor) -> Tensor:
        others = draw_rows(anchors, rows.shape[1], draws)
        x = torch.cat([gather_rows(own, rows)[0], gather_rows(anchors, others)[0]], 1)  # (K, 2B, E)
        scores = scorers(dropout(x, config.dropout, draws))[..., 0]
        labels = torch.zeros_like(scores)
        labels[:, : rows.shape[1]] = 1
        return binary_cross_entropy_with_logits(scores, labels, reduction="none").mean(1)

    batches = [generator(seed, "ownership batches", name) for name in names]
    sizes = [len(split) for split in own]
    train(scorers, loss, sizes, batches, config.training, f"seed {seed}: ownership", names=names)
    return scorers.cpu()


def train_pooled(
    config: ModelConfig, base: Base, train: Split, validation: Split, seed: int, unit: float
) -> dict[str, Tensor]:
    """Train the non-modular references, one head per pooled bank on all data; return tensors by `BANK.tensor`."""
    everything = ExpertData("pooled", train, train, validation)
    heads = {
        bank_id: train_bank(bank_id, bank, [everything], base, seed, unit, config.device)
        if bank.fit == "gradient" or bank.predicts_value
        else fit_bank(bank_id, bank, train, validation, base, seed)
        for bank_id, bank in config.of_form("pooled").items()
    }
    return {
        f"{bank_id}.{name}": value for bank_id, head in heads.items() for name, value in split_bank(head)[0].items()
    }


def train_jointly(
    config: TrainingConfig,
    bank: Bank,
    router: nn.Module,
    base: Base,
    split: Split,
    seed: int,
    device: str = "cpu",
) -> tuple[Bank, nn.Module]:
    """Train copies of residual experts and router together on the data of all domains: stage 4 of the papers."""
    bank, router = copy.deepcopy(bank).to(device), copy.deepcopy(router).to(device)
    base, split = base.on_features(device), split.to(device)
    count = next(bank.parameters()).shape[0]

    def loss(rows: Tensor) -> Tensor:
        batch = split.only(rows[0])
        residuals = bank(batch.inputs.expand(count, *batch.inputs.shape))  # (K, B, C)
        weights = router(batch.inputs).softmax(-1)
        logits = base.classify(batch.inputs) + torch.einsum("nk,knc->nc", weights, residuals)
        return cross_entropy(logits, batch.labels)[None]

    fewer = config.model_copy(update={"epochs": max(1, config.epochs // 4), "patience": None})
    batches = [generator(seed, "batches", "integration")]
    train(nn.ModuleList([bank, router]), loss, [len(split)], batches, fewer, f"seed {seed}: integration")
    return bank.cpu(), router.cpu()
