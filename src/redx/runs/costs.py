"""What a run costs: parameters of every module, passes through the backbone, and the time that composing takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import predict
from redx.config import SHARED_ONLY, RunConfig
from redx.data.dataset import Data
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.reading import exists, read_json
from redx.io.safetensors_files import open_safetensors
from redx.model.model import Model
from redx.models.encoder import FEATURES, TextEncoder
from redx.training.passes import count_passes

BATCH = 64  # examples of the measurement
REPETITIONS = 5


def describe_cost(config: RunConfig, folder: Path, data: Data, model: Model) -> dict[str, Any]:
    """Return the parameters of a run, and where it has a backbone the passes through it and the time of composing.

    Parameters
    ----------
    config
        Settings of the run.
    folder
        The run folder; a time that its summary.json holds for as many experts is not measured again.
    data
        The splits of the model's seed.
    model
        The composed model.
    """
    cost: dict[str, Any] = {"parameters": count_parameters(model)}
    if isinstance(model.base.encoder, TextEncoder):
        cost["passes"] = count_passes(config, data)
        cost["backbone_parameters"] = _count_backbone(model.base.encoder.frozen.folder)
    if config.backbone not in ("none", FEATURES):
        cost["composing"] = _kept(folder, len(model.experts)) or measure_composing(model, data)
    return cost


def count_parameters(model: Model) -> dict[str, int]:
    """Return the number of trained parameters of base, banks, router and ownership scores."""
    trained = [one for one in model.banks if one.form != "averaged" and one != SHARED_ONLY]
    modules: dict[str, Iterable[Tensor]] = {"base": model.base.tensors().values()}
    for bank_id in trained:
        if bank_id in model.fixed:
            modules[str(bank_id)] = model.fixed[bank_id].parameters()
        else:  # one by one, since experts with new classes have other sizes
            settings = model.experts.banks[bank_id]
            banks = [expert.bank(bank_id, settings, model.base) for expert in model.experts]
            modules[str(bank_id)] = [tensor for bank in banks for tensor in bank.parameters()]
    modules |= {"router": model.router.network.parameters()} if model.router else {}
    if model.config.has_ownership:
        scorers = (expert.ownership(model.experts.ownership, model.base).scorer for expert in model.experts)
        modules["ownership"] = [tensor for scorer in scorers for tensor in scorer.parameters()]
    return {name: sum(tensor.numel() for tensor in tensors) for name, tensors in modules.items()}


def measure_composing(model: Model, data: Data) -> dict[str, Any]:
    """Return the seconds that a batch needs in the backbone, and after it in experts, router and rule.

    The two are measured in turn, so that a busy machine slows both; the figures are medians.

    Parameters
    ----------
    model
        The composed model.
    data
        Splits with raw inputs, of which the first test examples are read.

    Returns
    -------
    dict
        `examples` of the batch, number of `experts`, `backbone_seconds`, `composing_seconds`, and their ratio `share`.
    """
    inputs = data.test.inputs[:BATCH]
    encoder = model.base.encoder
    texts = unpack_texts(inputs) if isinstance(encoder, TextEncoder) else []
    rule, bank_id = model.rule_and_bank()
    h = model.base.embed(inputs)
    unknown = torch.full((len(inputs),), -1)

    def encode() -> None:
        if isinstance(encoder, TextEncoder):
            for _ in encoder.frozen.encode(texts):  # not from the kept features
                pass
        else:
            model.base.embed(inputs)

    def compose() -> None:
        parts = model.parts_of(h, bank_id, unknown, unknown)
        predict(rule, parts, rule.weights(parts))

    for work in (encode, compose):
        work()  # the first calls load weights and calibration
    pairs = [(_seconds(encode), _seconds(compose)) for _ in range(REPETITIONS)]
    backbone, composing = (median(column) for column in zip(*pairs, strict=True))
    return {
        "examples": len(inputs),
        "experts": len(model.experts),
        "backbone_seconds": backbone,
        "composing_seconds": composing,
        "share": composing / backbone,
    }


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return max(time.perf_counter() - start, 1e-9)


def _kept(folder: Path, experts: int) -> dict[str, Any] | None:
    """Return the measurement in the summary of a run folder, if it is of as many experts."""
    if not exists(folder / "summary.json"):
        return None
    try:
        kept = read_json(folder / "summary.json")["cost"]["composing"]
        return kept if kept["experts"] == experts else None
    except (RedxError, KeyError, TypeError):  # an older or damaged summary, which is about to be written anew
        return None


def _count_backbone(folder: Path) -> int:
    """Return the number of parameters in the files of a language model; 0 where a file beside them cannot be read."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with open_safetensors(path) as file:
                count += sum(math.prod(shape) for _, shape in file.header.values())
        except RedxError:
            return 0
    return count
