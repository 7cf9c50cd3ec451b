"""The stages of one seed as functions that can run in any process: each reads and writes the run folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.composition.evaluation import Banks, evaluate
from redx.composition.listing import rules_of_run
from redx.composition.summary import Row
from redx.config import SHARED_ONLY, BankId, RunConfig
from redx.data.dataset import Data, Split
from redx.data.inputs import READERS
from redx.io.files import write_tensors
from redx.io.safetensors_files import read_tensors
from redx.model.model import Model, ModelInfo
from redx.models.banks import split_bank
from redx.models.base import Base
from redx.models.calibration import write_calibration
from redx.models.encoder import build_encoder
from redx.models.fingerprint import fingerprint_base
from redx.models.ridge_head import DESCRIPTION
from redx.models.ridge_head import FILE as HEAD
from redx.models.router import TRAINED
from redx.runs.folder import load_seed
from redx.runs.integrity import module_hashes
from redx.runs.parts import StoredParts, read_parts, write_parts
from redx.runs.tracking import recorder_of
from redx.runs.transaction import Transaction, edit, recover
from redx.tasks import extension_of, get_task
from redx.training.banks import train_jointly, train_pooled
from redx.training.base import train_base
from redx.training.datasets import (
    Features,
    expert_datasets,
    read_features,
    read_shared,
    select_anchors,
    split_validation,
)
from redx.training.experts import train_experts
from redx.training.features import EmbeddedSplits, embed_anchors, embed_split, without_copies
from redx.training.recording import recording
from redx.training.router import train_router

log = logging.getLogger("redx")

SPLITS = ("train", "validation", "test")
PLAIN = BankId("residual", "plain")  # the bank that joint training (stage 4) starts from
GROUP = 32  # experts that are trained as one stack: the same under every engine, since the last bits depend on it


@dataclass(frozen=True)
class SeedTask:
    """What the stages of one seed have in common; small enough to be sent to another machine.

    Attributes
    ----------
    config
        Settings of the run.
    seed
        The seed.
    folder
        The folder of the seed.
    info
        What the model knows of its task.
    track
        What records the training curves; None for nothing.
    """

    config: RunConfig
    seed: int
    folder: Path
    info: ModelInfo
    track: str | None = None

    @staticmethod
    def create(config: RunConfig, data: Data, seed: int, folder: Path, track: str | None = None) -> SeedTask:
        """Return the task of one seed."""
        shape = tuple(data.train.inputs.shape[1:])
        belongs = tuple(data.domain_of_classes())
        reader = get_task(config.task).read
        reads = next((name for name, known in READERS.items() if known is reader), "")
        info = ModelInfo(data.domains, data.classes, belongs, data.unit, shape, routed=data.domains, reads=reads)
        return SeedTask(config, seed, folder.absolute(), info, track)

    @property
    def origin(self) -> dict[str, str]:
        """Where its experts come from, for their expert.json."""
        return {"task": self.config.task, "preset": self.config.preset}

    def file(self, stage: str) -> Path:
        """Return the file of a stage that writes one."""
        return self.folder / f"{stage}.safetensors"

    def groups(self) -> list[tuple[str, ...]]:
        """Return the names of the experts that are trained together."""
        names = self.info.domains
        return [names[start : start + GROUP] for start in range(0, len(names), GROUP)]


@dataclass(frozen=True)
class Prepared:
    """What experts, pooled heads and router are trained on.

    Attributes
    ----------
    base
        The frozen base without its encoder: it reads features.
    splits
        Training data, shared subset and validation for choices, as features.
    fingerprint
        Fingerprint of the whole base.
    """

    base: Base
    splits: EmbeddedSplits
    fingerprint: dict[str, Any]


# stages that write one file of this name; that of an extension does too
FILES = ("base", "shared", "features", "pooled", "router", "integration")


def run_stage(task: SeedTask, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function of a stage, and record its training curves where the task asks for them."""
    with recording(recorder_of(task.track, task.folder.parent, task.seed)):
        return function(task, *arguments)


def read_texts(task: SeedTask, data: Data) -> None:
    """Run all texts of a seed through the frozen language model, into the cache."""
    build_encoder(task.config).prepare(getattr(data, name).inputs for name in SPLITS)


def make_base(task: SeedTask, data: Data) -> None:
    """Train the base."""
    write_tensors(task.file("base"), train_base(task.config, data, task.seed).tensors())


def make_shared(task: SeedTask, data: Data) -> None:
    """Choose the examples that everybody who trains an expert shares, and write them as features."""
    base = Base.from_tensors(read_tensors(task.file("base")), build_encoder(task.config))
    anchors = embed_anchors(task.config, base, select_anchors(data, task.config, task.seed), task.seed)
    write_tensors(task.file("shared"), {name: value.clone() for name, value in vars(anchors).items()})


def make_features(task: SeedTask, data: Data) -> None:
    """Keep the features of all splits, and inputs to show beside answers, in the folder, which then needs no data."""
    base = Base.from_tensors(read_tensors(task.file("base")), build_encoder(task.config))
    splits = (embed_split(task.config, base, getattr(data, name)) for name in SPLITS)
    choices, _ = split_validation(data, task.config.ownership.calibration, task.seed)
    inputs = {"raw.choice": data.validation.inputs[choices], "raw.test": data.test.inputs.clone()}
    write_tensors(task.file("features"), Features(*splits).tensors() | inputs)


def prepare(task: SeedTask) -> Prepared:
    """Read the base and the features that experts, pooled heads and router are trained on."""
    config, seed, info = task.config, task.seed, task.info
    base = Base.from_tensors(read_tensors(task.file("base")), build_encoder(config))
    features = read_features(task.file("features"))
    choices = features.choices(config.ownership.calibration, seed)
    splits = EmbeddedSplits(features.train, read_shared(task.file("shared")), choices)
    fingerprint = fingerprint_base(base, config, info.classes, info.shape)
    return Prepared(base.on_features(), splits, fingerprint)


def make_experts(task: SeedTask, prepared: Prepared, names: Sequence[str]) -> None:
    """Train these experts as one stack."""
    splits, info = prepared.splits, task.info
    everything = expert_datasets(info.domains, splits.train, splits.anchors, splits.validation)
    datasets = [dataset for dataset in everything if dataset.name in names]
    for expert in train_experts(
        task.config,
        datasets,
        prepared.base,
        task.seed,
        info.unit,
        info.classes,
        prepared.fingerprint,
        origin=task.origin,
        shared=without_copies(task.config, splits.anchors),
    ):
        expert.save(task.folder / "experts" / expert.name)


def make_shared_only(task: SeedTask, prepared: Prepared) -> None:
    """Train the experts on the shared examples alone, where every domain has some of them."""
    splits, info, settings = prepared.splits, task.info, task.config.for_shared_only()
    assert settings is not None
    shared = without_copies(task.config, splits.anchors)
    datasets = expert_datasets(info.domains, shared, splits.anchors, splits.validation)
    if missing := [data.name for data in datasets if not len(data.own)]:
        return log.info("domain %r has no shared examples, so no experts learn from these alone", missing[0])
    given = (prepared.base, task.seed, info.unit, info.classes, prepared.fingerprint)
    for expert in train_experts(settings, datasets, *given, origin=task.origin):
        expert.save(task.folder / SHARED_ONLY.name / expert.name)


def make_pooled(task: SeedTask, prepared: Prepared) -> None:
    """Train the heads on all data."""
    splits = prepared.splits
    tensors = train_pooled(task.config, prepared.base, splits.train, splits.validation, task.seed, task.info.unit)
    write_tensors(task.file("pooled"), tensors)


def make_router(task: SeedTask, prepared: Prepared) -> None:
    """Train the router."""
    splits, device = prepared.splits, task.config.device
    router = train_router(task.config.router, task.info.domains, splits.train, splits.validation, task.seed, device)
    write_tensors(task.file("router"), router.state_dict())


def make_integration(task: SeedTask, prepared: Prepared) -> None:
    """Train the plain residual bank and the router together; write tensors by `DOMAIN.tensor` and `router.tensor`."""
    model = load_seed(task.folder, task.config.model_copy(update={"integrate": False}))
    assert model.router is not None  # `configure` refuses joint training without a trained router
    training, train = task.config.banks[PLAIN].training, prepared.splits.train
    parts = model.bank(PLAIN), model.router.network, model.base, train
    bank, router = train_jointly(training, *parts, task.seed, task.config.device)
    tensors: dict[str, Tensor] = {
        f"{name}.{key}": value
        for name, expert in zip(model.experts.names, split_bank(bank), strict=True)
        for key, value in expert.items()
    }
    tensors |= {f"router.{name}": value for name, value in router.state_dict().items()}
    write_tensors(task.file("integration"), tensors)


def make_extension(task: SeedTask) -> None:
    """Train what the task puts before the model."""
    extension = extension_of(task.config)
    assert extension is not None
    write_tensors(task.file(extension.NAME), extension.train(task.config, task.seed))


def make_parts(task: SeedTask, data: Data) -> None:
    """Compute the parts of the test split."""
    recover(task.folder)  # a worker that was lost may have been writing them
    with edit(task.folder) as transaction:
        model = load_seed(task.folder, task.config)
        write_test_parts(transaction, model, embed_split(model.config, model.base, data.test))


def parts_of_test(model: Model, test: Split) -> Banks:
    """Return the parts of every bank of a model on the features of the test split."""
    domains = model.expert_index(test.domains)
    return {bank_id: model.parts_of(test.inputs, bank_id, test.labels, domains) for bank_id in model.banks}


def write_test_parts(transaction: Transaction, model: Model, test: Split) -> StoredParts:
    """Compute the parts of the test split for the experts that a model has now; write them on commit."""
    if model.router is not None:
        model.routing = TRAINED  # the experts may have changed since the model was read
    model.route_by_keys_if_needed()  # until the router is retrained
    model.place(model.config.device)
    if (head := model.experts.head) is not None:
        head.save(transaction.new(HEAD), transaction.new(DESCRIPTION))
    if model.config.controlled_bank:
        files = transaction.new("risk.json"), transaction.new("thresholds.safetensors")
        write_calibration(*files, model.current_control(), model.compared_controls())
    banks = dict(sorted(parts_of_test(model, test).items()))  # as they are read again
    names = model.domain_names, len(model.experts), model.classes
    modules = module_hashes(transaction.folder, transaction.entries())
    write_parts(transaction.new("parts"), banks, *names, modules)
    return StoredParts(banks, model.domain_names, model.classes)


def evaluate_seed(config: RunConfig, folder: Path, seed: int) -> list[Row]:
    """Return the rows of results.jsonl of one seed."""
    return evaluate_parts(config, seed, read_parts(folder, seed))


def evaluate_parts(config: RunConfig, seed: int, stored: StoredParts) -> list[Row]:
    """Return the rows of results.jsonl of one seed, whose parts are given."""
    sweep = {"kinds": config.noise, "levels": config.levels, "epsilons": config.epsilons}
    sweep |= {"rules": rules_of_run(config, stored.banks)}
    return list(evaluate(stored.banks, task=config.task, seed=seed, domains=stored.domains, **sweep))
