"""Train experts: every bank and the ownership score of each, with the description that becomes expert.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition.abstention import class_means
from redx.composition.parts import predicted_classes
from redx.config import BankId, ModelConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.banks import Bank, run_bank, split_bank
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.feature_map import FeatureMap
from redx.models.statistics import Statistics, collect, without_shared
from redx.training.banks import train_bank, train_ownership
from redx.training.datasets import ExpertData

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def train_experts(
    config: ModelConfig,
    datasets: Sequence[ExpertData],
    base: Base,
    seed: int,
    unit: float,
    classes: Sequence[str],
    fingerprint: dict[str, Any],
    dtype: str = "float32",
    origin: Mapping[str, Any] | None = None,
    shared: Split | None = None,
) -> list[Expert]:
    """Train one expert per dataset; none depends on the others.

    Parameters
    ----------
    config
        Settings of the model: which banks every expert is part of.
    datasets
        The data of each expert, as features.
    base
        The frozen base, extended where the experts bring classes of their own.
    seed
        Decides initial weights and batches.
    unit
        For a regression, what one unit of the answer is in the network's output.
    classes
        The labels, in the order of the logits; those of an extended base are followed by the new ones.
    fingerprint
        Fingerprint of the base, which every expert carries along.
    dtype
        Precision that the expert's tensors are stored in.
    origin
        Where they come from, such as the task and preset of a run, for expert.json.
    shared
        The shared examples as features, with which the experts get statistics where the settings use them: sums over
        their own examples that are not among the shared ones. None: no statistics.

    Returns
    -------
    list of Expert
        The experts, in the order of the datasets.
    """
    own = {
        bank_id: bank for bank_id, bank in config.of_form("standalone", "residual").items() if bank.experts_of is None
    }
    banks = {
        bank_id: train_bank(bank_id, bank, datasets, base, seed, unit, config.device) for bank_id, bank in own.items()
    }
    tensors = {str(bank_id): split_bank(bank) for bank_id, bank in banks.items()}
    has_ownership = config.has_ownership
    if has_ownership:
        tensors["ownership"] = train_ownership(config.ownership, datasets, base, seed, config.device)
    experts = []
    for index, data in enumerate(datasets):
        info = {
            "schema": 1,
            "domain": data.name,
            "kind": "residual and standalone heads" if any(key.corrects_base for key in banks) else "standalone heads",
            **(origin or {}),
            "seed": seed,
            "classes": [classes[label] for label in data.own.labels.unique().tolist()] if classes else [],
            **({"new_classes": list(new)} if (new := classes[base.known :]) else {}),
            "dtype": dtype,
            "banks": {str(bank_id): config.banks[bank_id].model_dump(mode="json") for bank_id in banks},
            "training": {"examples": len(data.own), "anchors": len(data.anchors)},
            "metrics": _metrics(data.validation, banks, index, base, unit),
            "base": fingerprint,
        }
        if has_ownership:
            info["ownership"] = {"score": config.ownership.kind}
        mine = {f"{key}.{name}": value for key, files in tensors.items() for name, value in files[index].items()}
        if new:  # what their examples look like, so that a model does not abstain on them
            rows = (data.own.labels >= base.known).nonzero()[:, 0]
            mine["new_classes.means"] = class_means(data.own.inputs[rows], data.own.labels[rows])
        statistics = None if shared is None else _collect(config, data.own, shared, base, classes, fingerprint)
        experts.append(Expert(info, _to_dtype(mine, dtype), statistics))
    return experts


def _collect(
    config: ModelConfig, own: Split, shared: Split, base: Base, classes: Sequence[str], fingerprint: dict[str, Any]
) -> Statistics | None:
    """Return the statistics of an owner's examples; None where the settings use none, or all examples are shared."""
    if not config.statistics.use or not classes:
        return None
    rest = without_shared(own, shared)
    if not len(rest):
        return None
    map = FeatureMap.create(config.statistics, base)
    return collect(map, rest.inputs, rest.labels, classes, str(fingerprint.get("base weights", "")))


def measure_expert(expert: Expert, config: ModelConfig, data: ExpertData, base: Base, unit: float) -> Expert:
    """Return an expert from outside with metrics measured anew on the run's own data.

    The metrics that its file brings along are replaced.

    Parameters
    ----------
    expert
        The expert as it was loaded.
    config
        Settings of the run.
    data
        The shared data of the run as the expert may use them; `validation` holds examples of its own domain, if any.
    base
        The frozen base.
    unit
        For a regression, what one unit of the answer is in the network's output.
    """
    own = {
        bank_id: bank for bank_id, bank in config.of_form("standalone", "residual").items() if bank.experts_of is None
    }
    banks = {bank_id: expert.bank(bank_id, bank, base) for bank_id, bank in own.items()}
    for bank_id, bank in banks.items():
        if not bool(run_bank(bank, data.anchors.inputs).isfinite().all()):
            raise RedxError(f"Expert {expert.name!r} gives NaN or infinity in the bank {bank_id}; train it anew.")
    info = dict(expert.info)
    info["metrics"] = _metrics(data.validation, banks, 0, expert.extended(base), unit)
    if config.has_ownership:
        expert.ownership(config.ownership, base)  # refused where it brings none that fits
        info["ownership"] = {"score": config.ownership.kind}
    return expert.changed(info)


def _to_dtype(tensors: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    return {name: value.to(DTYPES[dtype]) if value.is_floating_point() else value for name, value in tensors.items()}


def _metrics(split: Split, banks: Mapping[BankId, Bank], index: int, base: Base, unit: float) -> dict[str, Any]:
    """Return the accuracy of the base, and of the expert in every bank, on held-out examples of its own domain."""

    def accuracy(logits: Tensor) -> float | None:
        return float((predicted_classes(logits / unit) == split.labels).double().mean()) if len(split) else None

    logits = base.classify(split.inputs)
    metrics: dict[str, Any] = {"examples": len(split), "base": accuracy(logits)}
    for bank_id, bank in banks.items():
        outputs = run_bank(bank, split.inputs)[:, index]
        metrics[str(bank_id)] = accuracy(logits + outputs if bank_id.corrects_base else outputs)
    return metrics
