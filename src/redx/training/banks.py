"""What each stage computes: from settings, data and a seed to tensors; no run folder, no order of things."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from redx.config import BankConfig, OwnershipConfig, RunConfig, TrainingConfig
from redx.data.dataset import Split
from redx.models import banks
from redx.models.banks import LowRankBank, MLPBank, build_bank
from redx.models.base import Base
from redx.models.ownership import OwnershipScorer
from redx.models.router import NetworkRouter
from redx.seeding import generator
from redx.training.datasets import ExpertData
from redx.training.loop import draw_rows, dropout, gather_rows, train


def train_bank(
    key: str, settings: BankConfig, lessons: Sequence[ExpertData], base: Base, seed: int, unit: float
) -> MLPBank | LowRankBank:
    """Train one expert a lesson; expert k depends on its own lesson and name alone."""
    bank = build_bank(settings, len(lessons), base)
    banks.initialise_bank(bank, [generator(seed, "expert", key, lesson.name) for lesson in lessons])
    own, anchors = [lesson.own for lesson in lessons], [lesson.anchors for lesson in lessons]
    corrects = key.startswith("residual/")
    mean, deviation = torch.zeros(len(own), 1, base.width), torch.ones(len(own), 1, base.width)
    if settings.standardise:
        mean = torch.stack([split.inputs.mean(0, keepdim=True) for split in own])
        deviation = torch.stack([split.inputs.std(0, keepdim=True).clamp_min(1e-6) for split in own])
    draws = [generator(seed, "anchors", key, lesson.name) for lesson in lessons]

    def speak(x: Tensor) -> Tensor:
        return bank(dropout((x - mean) / deviation, settings.dropout, draws))

    def loss(rows: Tensor) -> Tensor:
        x, labels = gather_rows(own, rows)  # (K, B, E), (K, B)
        start = base.classify(x) if corrects else 0.0
        total = losses(start + speak(x), labels, unit, settings.smoothing)
        if settings.anchor == "none":
            return total
        x, labels = gather_rows(anchors, draw_rows(anchors, rows.shape[1], draws))
        start = base.classify(x) if corrects else None
        return total + settings.anchor_weight * anchor_loss(settings.anchor, start, speak(x), labels)

    def score(learner: int) -> float:
        check = lessons[learner].check if len(lessons[learner].check) else lessons[learner].own
        with torch.no_grad():
            said = banks.run_bank(bank, check.inputs)[:, learner] + (base.classify(check.inputs) if corrects else 0.0)
        return -float(losses(said[None], check.labels[None], unit))

    batches = [generator(seed, "batches", key, lesson.name) for lesson in lessons]
    train(settings.training, bank, loss, [len(split) for split in own], batches, score, f"seed {seed}: {key}")
    if isinstance(bank, MLPBank) and settings.standardise:
        banks.fold_standardisation(bank, mean, deviation)
    return bank


def losses(said: Tensor, truth: Tensor, unit: float, smoothing: float = 0.0) -> Tensor:
    """The loss of each learner, (K, B, C) and (K, B) to (K,): squared error for a regression, else cross-entropy."""
    if said.shape[-1] == 1:
        return (said[..., 0] - truth * unit).square().mean(1)
    flat = cross_entropy(said.flatten(0, 1), truth.flatten(), reduction="none", label_smoothing=smoothing)
    return flat.view(truth.shape).mean(1)


def anchor_loss(anchor: str, start: Tensor | None, said: Tensor, truth: Tensor) -> Tensor:
    """What it costs an expert to disturb the base outside its domain: (K, B, C) to (K,).

    `start` is the base's logits under a correction; a standalone head has none and can only learn the labels.
    """
    if start is None or anchor == "truth":
        return losses(said if start is None else start + said, truth, 1.0)
    if anchor == "size":
        return said.square().mean((1, 2))
    return (0.9 * _margin(start, truth) - _margin(start + said, truth)).clamp_min(0).mean(1)


def _margin(logits: Tensor, truth: Tensor) -> Tensor:
    """By how much the true class leads the best rival: (K, B, C) to (K, B)."""
    index = truth[..., None]
    rivals = logits.scatter(-1, index, -torch.inf).amax(-1)
    return logits.gather(-1, index)[..., 0] - rivals


def train_ownership(
    settings: OwnershipConfig, lessons: Sequence[ExpertData], base: Base, seed: int
) -> list[dict[str, Tensor]]:
    """Each expert's score of what is its own, and its scores of held-out examples that are not: tensors by expert."""
    if settings.score == "classes":
        scorers = train_bank("residual/ownership", settings.bank, lessons, base, seed, 1.0)
        known = [torch.zeros(base.outputs).index_fill(0, lesson.own.labels.unique(), 1) for lesson in lessons]
        files = [each | {"classes": own} for each, own in zip(banks.split_bank(scorers), known, strict=True)]
    else:
        files = banks.split_bank(train_scorers(settings.bank, lessons, base, seed))
    return [
        file | {"calibration": OwnershipScorer(settings, file, base).scores(outside.inputs).sort().values}
        for file, outside in zip(files, (lesson.calibration for lesson in lessons), strict=True)
    ]


def train_scorers(settings: BankConfig, lessons: Sequence[ExpertData], base: Base, seed: int) -> MLPBank:
    """A score an expert: own domain against anchors."""
    scorers = MLPBank(len(lessons), [base.width, settings.hidden, 1])
    banks.initialise_bank(scorers, [generator(seed, "ownership", lesson.name) for lesson in lessons])
    draws = [generator(seed, "ownership anchors", lesson.name) for lesson in lessons]
    own, anchors = [lesson.own for lesson in lessons], [lesson.anchors for lesson in lessons]

    def loss(rows: Tensor) -> Tensor:
        others = draw_rows(anchors, rows.shape[1], draws)
        x = torch.cat([gather_rows(own, rows)[0], gather_rows(anchors, others)[0]], 1)  # (K, 2B, E)
        scores = scorers(dropout(x, settings.dropout, draws))[..., 0]
        truth = torch.zeros_like(scores)
        truth[:, : rows.shape[1]] = 1
        return binary_cross_entropy_with_logits(scores, truth, reduction="none").mean(1)

    batches = [generator(seed, "ownership batches", lesson.name) for lesson in lessons]
    train(settings.training, scorers, loss, [len(split) for split in own], batches, None, f"seed {seed}: ownership")
    return scorers


def train_pooled(
    config: RunConfig, base: Base, train: Split, check: Split, seed: int, unit: float
) -> dict[str, Tensor]:
    """The non-modular references, one head each on all data; tensors by `BANK.tensor`."""
    everything = ExpertData("pooled", train, train, check, check)
    heads = {
        key: train_bank(key, settings, [everything], base, seed, unit)
        for key, settings in config.of_form("pooled").items()
    }
    return {f"{key}.{name}": value for key, head in heads.items() for name, value in banks.split_bank(head)[0].items()}


def train_jointly(
    settings: TrainingConfig, bank: banks.Bank, router: NetworkRouter, base: Base, split: Split, seed: int
) -> tuple[banks.Bank, NetworkRouter]:
    """Stage 4 of the papers: copies of residual experts and router, trained together on the data of all domains."""
    bank, router = copy.deepcopy(bank), copy.deepcopy(router)
    count = next(bank.parameters()).shape[0]

    def loss(rows: Tensor) -> Tensor:
        some = split.only(rows[0])
        said = bank(some.inputs.expand(count, *some.inputs.shape))  # (K, B, C)
        mixed = base.classify(some.inputs) + torch.einsum("nk,knc->nc", router(some.inputs).softmax(-1), said)
        return cross_entropy(mixed, some.labels)[None]

    fewer = settings.model_copy(update={"epochs": max(1, settings.epochs // 4), "patience": None})
    batches = [generator(seed, "batches", "integration")]
    train(fewer, nn.ModuleList([bank, router]), loss, [len(split)], batches, None, f"seed {seed}: integration")
    return bank, router
