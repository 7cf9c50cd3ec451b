"""The stages of a run, wired here and nowhere else: data, base, experts, router, parts, evaluation, study, report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import Banks, Row, evaluate, summarise
from redx.composition.parts import predicted_classes
from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.io import files
from redx.io.progress import progress
from redx.models import fingerprint
from redx.models.banks import split_bank
from redx.models.base import Base
from redx.models.composed import Model, ModelInfo
from redx.models.encoder import TextEncoder, build_encoder
from redx.models.persistence import read_domain_names
from redx.report.content import Study
from redx.report.page import check_packages
from redx.runs.folder import SeedFolder, load, load_seed, lock_run, read_parts
from redx.runs.presets import configure
from redx.runs.reports import read_study, write_report
from redx.tasks import get_task
from redx.tasks.arithmetic.decomposers import train_decomposer
from redx.training import datasets, experts, features
from redx.training.banks import train_jointly, train_pooled
from redx.training.base import train_base
from redx.training.datasets import SharedData
from redx.training.features import EmbeddedSplits, embed_splits
from redx.training.router import train_router

log = logging.getLogger("redx")


@dataclass(frozen=True)
class Run:
    """A finished run: where it is, and what came out."""

    folder: Path
    summary: dict[str, Any]

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def load(self, seed: int | None = None) -> Model:
        return load(self.folder, seed)


def run(
    name: str,
    preset: str = "default",
    seeds: Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    **changes: Any,
) -> Run:
    """Run a task from data to report; a run that was interrupted goes on where it stopped, with the same numbers."""
    check_packages()
    config = configure(name, preset, seeds=seeds, **changes)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RedxError("There is no CUDA device here; leave out --device or choose --device cpu.")
    folder = Path(out or Path("runs") / name)
    start = time.perf_counter()
    data = {seed: get_task(name).load(config, seed) for seed in config.seeds}
    build_encoder(config)  # what is wrong with data or backbone is found before anything is written
    with lock_run(folder, config), _threads(config.threads):
        clock = {seed: train_seed(config, data[seed], seed, folder / f"seed-{seed}") for seed in config.seeds}
        return _conclude(config, folder, data, clock, start)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Train with so many threads; small products lose more by waiting for a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_seed(config: RunConfig, data: Data, seed: int, folder: Path) -> dict[str, float]:
    """Train everything of one seed, each stage once; gives the seconds each stage took."""
    place = SeedFolder(folder)
    shape = tuple(data.train.inputs.shape[1:])
    facts = ModelInfo(data.domains, data.classes, tuple(data.belongs()), data.unit, shape, routed=data.domains)
    if not (folder / "model.json").exists():  # a router trained anew may know other experts
        files.write_json(folder / "model.json", dataclasses.asdict(facts))

    def stage(name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        place.stage(name, lambda: files.write_tensors(folder / f"{name}.safetensors", make()))
        return files.read_tensors(folder / f"{name}.safetensors")

    encoder = build_encoder(config)
    if isinstance(encoder, TextEncoder):
        splits = (data.train, data.validation, data.test)
        place.stage("reading", lambda: encoder.prepare(split.inputs for split in splits))
    base = Base.of(stage("base", lambda: train_base(config, data, seed)), encoder)
    raw = SharedData.of(stage("shared", lambda: datasets.select_shared(data, config, seed).tensors()))
    if "parts" in place.done:
        return place.done
    made: list[EmbeddedSplits] = []
    place.stage("features", lambda: made.append(embed_splits(config, base, data, raw, seed)))
    train, shared, check = made[0] if made else embed_splits(config, base, data, raw, seed)  # from the cache

    def experts_stage() -> None:
        taught = datasets.expert_datasets(data.domains, train, shared, check)
        mark = fingerprint.fingerprint_base(base, config, facts.classes, facts.shape)
        for expert in experts.train_experts(config, taught, base, seed, data.unit, data.classes, mark):
            expert.save(folder / "experts" / expert.name)

    place.stage("experts", experts_stage)
    if config.of_form("pooled"):
        stage("pooled", lambda: train_pooled(config, base, train, check, seed, data.unit))
    if config.router.shape != "keys":
        stage("router", lambda: train_router(config, data.domains, train, check, seed))
    if config.integrate:
        stage("integration", lambda: _integrate(folder, config, train, seed))
    if config.decomposer != "none":
        stage("decomposer", lambda: train_decomposer(config.decomposer, seed, config.backbone).tensors())
    place.stage("parts", lambda: save_parts(folder, load_seed(folder, config), data))
    return place.done


def _integrate(folder: Path, config: RunConfig, train: Split, seed: int) -> dict[str, Tensor]:
    """The plain residual bank and the router after joint training; tensors by `DOMAIN.tensor` and `router.tensor`."""
    model = load_seed(folder, config.model_copy(update={"integrate": False}))
    assert model.router is not None  # `configure` refuses stage 4 without one
    training = config.banks["residual/plain"].training
    bank, router = train_jointly(training, model.bank(("residual", "plain")), model.router, model.base, train, seed)
    tensors = {
        f"{name}.{key}": value
        for name, file in zip(model.domains, split_bank(bank), strict=True)
        for key, value in file.items()
    }
    return tensors | {f"router.{name}": value for name, value in router.state_dict().items()}


def save_parts(folder: Path, model: Model, data: Data) -> None:
    """What every trained module says about the test split, once."""
    for (form, name), parts in test_parts(model, data).items():
        files.write_tensors(folder / "parts" / f"{form}-{name}.safetensors", vars(parts))


def test_parts(model: Model, data: Data) -> Banks:
    """The test split as every bank of a model sees it."""
    test = features.embed_split(model.config, model.base, data.test)
    places = model.places(test.domains)
    return {bank: model.describe(test.inputs, bank, test.labels, places) for bank in model.banks}


def _conclude(
    config: RunConfig, folder: Path, data: dict[int, Data], clock: dict[int, dict[str, float]], start: float
) -> Run:
    """From the parts of every seed to results, study, summary and report."""
    first = data[config.seeds[0]]
    began = time.perf_counter()
    parts = {seed: read_parts(folder, seed) for seed in config.seeds}
    rows: list[Row] = []
    with progress("evaluation", len(parts)) as advance:
        for seed, banks in parts.items():
            sweep = {"kinds": config.noise, "levels": config.levels, "epsilons": config.epsilons}
            names = read_domain_names(folder / f"seed-{seed}")
            rows += evaluate(banks, task=config.task, seed=seed, domains=names, **sweep)
            advance(1)
    evaluated = time.perf_counter()
    study = _study(config, folder, data, parts)
    seconds = {stage: sum(each[stage] for each in clock.values()) for stage in clock[config.seeds[0]]}
    seconds |= {"evaluation": evaluated - began, "study": time.perf_counter() - evaluated}
    summary = {
        "schema": 1,
        "task": config.task,
        "preset": config.preset,
        "seeds": list(config.seeds),
        "backbone": config.backbone,
        "interval": "95 %, Student's t over seeds" if len(parts) > 1 else "95 %, Wilson over test examples",
        "data": {
            **{name: len(getattr(first, name)) for name in ("train", "validation", "test")},
            "split": first.split,
            "seen_in_train": first.seen_in_train,
        },
        "domains": list(first.domains),
        "rules": summarise(rows, config.main, len(first.test)),
        "router": {"accuracy": _mean(_router_accuracy(banks) for banks in parts.values())},
        "study": study.facts if study else {},
        "cost": {
            "seconds": {**seconds, "total": sum(seconds.values())},
            "wall_seconds": time.perf_counter() - start,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "parameters": _parameters(load_seed(folder / f"seed-{config.seeds[0]}", config)),
        },
    }
    hashes = {
        seed: {name: getattr(data[seed], name).digest() for name in ("train", "validation", "test")} for seed in data
    }
    files.write_json(folder / "data.json", {"split": first.split, "sha256": hashes})
    files.write_bytes(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    files.write_json(folder / "summary.json", summary)
    write_report(folder, config, summary, study)
    log.info("finished in %.1f s", time.perf_counter() - start)
    return Run(folder, summary)


def _study(config: RunConfig, folder: Path, data: dict[int, Data], parts: dict[int, Banks]) -> Study | None:
    """The task's own experiments; made once for these seeds, read again afterwards."""
    module = get_task(config.task).study
    if module is None or config.study == "none":
        return None
    made = read_study(folder)
    if made is None or made.facts.get("seeds") != list(config.seeds):
        models = {seed: load(folder, seed) for seed in config.seeds}
        made = importlib.import_module(module).study(config, data, models, parts)
        files.write_json(folder / "study.json", dataclasses.asdict(made))
    return made


def _router_accuracy(banks: Banks) -> float:
    """How often the router's first choice is the example's domain."""
    parts = max(banks.values(), key=lambda found: found.experts)
    return float((predicted_classes(parts.gates) == parts.domains).double().mean())


def _parameters(model: Model) -> dict[str, int]:
    counted = {"/".join(key): model.bank(key).parameters() for key in model.banks if key[0] != "averaged"}
    modules = {"base": model.base.tensors().values(), **counted}
    modules |= {"router": model.router.parameters()} if model.router else {}
    if any(bank.owned for bank in model.config.banks.values()):
        owners = (expert.owner(model.experts.ownership, model.base) for expert in model.experts)
        modules["ownership"] = [tensor for owner in owners for tensor in owner.scorer.parameters()]
    return {name: sum(tensor.numel() for tensor in tensors) for name, tensors in modules.items()}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
