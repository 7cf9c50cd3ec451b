"""The stages of a run, wired here and nowhere else: data, base, experts, router, parts, evaluation, study, report."""

from __future__ import annotations

import contextlib
import copy
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

from redx import encoders, experts, lessons, report, stages, store
from redx.arithmetic import decomposers
from redx.arithmetic.executor import Executor, Solver
from redx.config import Config
from redx.encoders import Language
from redx.errors import RedxError
from redx.evaluate import Banks, Row, evaluate, summarise
from redx.findings import Study
from redx.model import Base, Model, Owners, build
from redx.presets import configure
from redx.progress import progress
from redx.records import Data, Split, answers
from redx.routers import Router
from redx.tasks import task

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
    report.check()
    config = configure(name, preset, seeds=seeds, **changes)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RedxError("There is no CUDA device here; leave out --device or choose --device cpu.")
    folder = Path(out or Path("runs") / name)
    start = time.perf_counter()
    encoders.build(config)  # what is wrong with backbone or data is found before anything is written
    data = {seed: task(name).load(config, seed) for seed in config.seeds}
    with store.writing(folder, config), _threads(config.threads):
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


def train_seed(config: Config, data: Data, seed: int, folder: Path) -> dict[str, float]:
    """Train everything of one seed, each stage once; gives the seconds each stage took."""
    place = store.Seed(folder)
    facts = {"domains": data.domains, "classes": data.classes, "unit": data.unit, "belongs": data.belongs()}
    store.write_json(folder / "model.json", facts)

    def stage(name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        place.stage(name, lambda: store.write_tensors(folder / f"{name}.safetensors", make()))
        return store.read_tensors(folder / f"{name}.safetensors")

    encoder = encoders.build(config)
    if isinstance(encoder, Language):
        splits = (data.train, data.validation, data.test)
        place.stage("reading", lambda: encoder.prepare(split.inputs for split in splits))
    base = Base.of(stage("base", lambda: stages.train_base(config, data, seed)), encoder)
    if "parts" in place.done:
        return place.done
    made: list[Split] = []
    place.stage("features", lambda: made.extend(embed_splits(config, base, data, seed)))
    train, anchors, check, calibration, _ = made or embed_splits(config, base, data, seed)  # from the cache
    taught = lessons.teach(data, train, anchors, check)

    def experts_stage() -> None:
        chosen = {key: bank for key, bank in config.of_form("standalone", "residual").items() if bank.of is None}
        banks = {key: stages.train_bank(key, bank, taught, base, seed, data.unit) for key, bank in chosen.items()}
        owned = any(bank.owned for bank in config.banks.values())
        owners = stages.train_ownership(config.ownership, taught, calibration, base, seed) if owned else []
        _save_experts(folder, config, data, banks, owners)

    place.stage("experts", experts_stage)
    stage("pooled", lambda: stages.train_pooled(config, base, train, check, seed, data.unit))
    stage("router", lambda: stages.train_router(config, data, train, check, seed))
    if config.integrate:
        stage("integration", lambda: _integrate(folder, config, data, train, seed))
    if config.decomposer != "none":
        stage("decomposer", lambda: decomposers.train(config.decomposer, seed, config.backbone).tensors())
    place.stage("parts", lambda: _save_parts(folder, config, data))
    return place.done


def _integrate(folder: Path, config: Config, data: Data, train: Split, seed: int) -> dict[str, Tensor]:
    """The plain residual bank and the router after joint training; tensors by `DOMAIN.tensor` and `router.tensor`."""
    model = _load_seed(folder, config.model_copy(update={"integrate": False}))
    plain, training = model.banks["residual", "plain"], config.banks["residual/plain"].training
    bank, router = stages.integrate(training, plain, model.router, model.base, train, seed)
    tensors = {
        f"{name}.{key}": value
        for name, file in zip(data.domains, experts.split(bank), strict=True)
        for key, value in file.items()
    }
    return tensors | {f"router.{name}": value for name, value in router.state_dict().items()}


def embed_splits(config: Config, base: Base, data: Data, seed: int) -> tuple[Split, Split, Split, Split, Split]:
    """What the frozen base makes of the data: train, anchors, validation for choices and for cut-offs, test."""
    train, validation, test = (stages.embed(config, base, split) for split in (data.train, data.validation, data.test))
    choose, calibrate = lessons.halve(data, config.ownership.calibration, seed)
    shared = lessons.share(data, config.base.share, seed)
    copies = (lessons.copy(data.train.only(shared), seed, number) for number in range(config.base.copies))
    anchors = [train.only(shared), *(stages.embed(config, base, copy) for copy in copies)]
    return train, lessons.pool(anchors), validation.only(choose), validation.only(calibrate), test


def _save_experts(
    folder: Path, config: Config, data: Data, banks: dict[str, experts.Bank], owners: list[dict[str, Tensor]]
) -> None:
    """One folder an expert, with its tensors of every bank and its ownership score."""
    alone = {key: experts.split(bank) for key, bank in banks.items()}
    alone |= {"ownership": owners} if owners else {}
    about = {key: settings.model_dump(mode="json") for key, settings in config.banks.items() if key in banks}
    for index, domain in enumerate(data.domains):
        tensors = {f"{key}.{name}": value for key, split in alone.items() for name, value in split[index].items()}
        store.write_tensors(folder / "experts" / domain / "expert.safetensors", tensors)
        store.write_json(folder / "experts" / domain / "expert.json", {"domain": domain, "banks": about})


def _save_parts(folder: Path, config: Config, data: Data) -> None:
    """What every trained module says about the test split, once."""
    model = _load_seed(folder, config)
    test = stages.embed(config, model.base, data.test)
    for form, name in model.banks:
        parts = model.describe(test.inputs, (form, name), test.labels, test.domains)
        store.write_tensors(folder / "parts" / f"{form}-{name}.safetensors", vars(parts))


def _load_seed(folder: Path, config: Config) -> Model:
    """The trained modules of one seed, as a model."""
    facts = store.read_json(folder / "model.json")
    domains = tuple(facts["domains"])
    base = Base.of(store.read_tensors(folder / "base.safetensors"), encoders.build(config))
    files = [store.read_tensors(folder / "experts" / domain / "expert.safetensors") for domain in domains]
    pooled = store.read_tensors(folder / "pooled.safetensors")
    banks: dict[tuple[str, str], experts.Bank] = {}
    for key, settings in config.banks.items():
        form, name = key.split("/")
        bank = banks[form, name] = stages.rebuild(key, settings, [pooled] if form == "pooled" else files, base)
        if config.average and form == "standalone":
            mean = banks["averaged", name] = build(settings, 1, base)
            experts.join(mean, experts.average(bank))
    router = Router(base.width, len(domains), config.router.shape, config.router.hidden)
    try:
        router.load_state_dict(store.read_tensors(folder / "router.safetensors"))
    except RuntimeError as error:
        raise RedxError(
            f"{folder / 'router.safetensors'} does not fit this run; delete it and repeat the run."
        ) from error
    own_router = {}
    if config.integrate:
        tensors = store.read_tensors(folder / "integration.safetensors")
        alone = [stages.own(tensors, domain) for domain in domains]
        banks["residual", "integrated"] = build(config.banks["residual/plain"], len(alone), base)
        experts.join(banks["residual", "integrated"], alone)
        own_router["residual", "integrated"] = copy.deepcopy(router)
        own_router["residual", "integrated"].load_state_dict(stages.own(tensors, "router"))
    owned = {key: bank for key, bank in config.banks.items() if bank.owned}
    return Model(
        domains=domains,
        belongs=tuple(facts["belongs"]),
        classes=tuple(facts["classes"]),
        unit=facts["unit"],
        read=task(config.task).read,
        base=base,
        banks=banks,
        main=config.main,
        router=router,
        own_router=own_router,
        owners=Owners.of(config.ownership, [stages.own(file, "ownership") for file in files], base) if owned else None,
        decomposer=None if config.decomposer == "none" else lambda: _load_decomposer(folder, config),
        owned=frozenset((form, name) for form, name in (key.split("/") for key in owned)),
    )


def _load_decomposer(folder: Path, config: Config) -> decomposers.Decomposer:
    tensors = store.read_tensors(folder / "decomposer.safetensors")
    return decomposers.restore(config.decomposer, tensors, config.backbone)


def _conclude(
    config: Config, folder: Path, data: dict[int, Data], clock: dict[int, dict[str, float]], start: float
) -> Run:
    """From the parts of every seed to results, study, summary and report."""
    first = data[config.seeds[0]]
    began = time.perf_counter()
    parts = {seed: store.read_parts(folder, seed) for seed in config.seeds}
    rows: list[Row] = []
    with progress("evaluation", len(parts)) as advance:
        for seed, banks in parts.items():
            sweep = {"kinds": config.noise, "levels": config.levels, "epsilons": config.epsilons}
            rows += evaluate(banks, task=config.task, seed=seed, domains=first.domains, **sweep)
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
            "parameters": _parameters(_load_seed(folder / f"seed-{config.seeds[0]}", config)),
        },
    }
    hashes = {
        seed: {name: getattr(data[seed], name).digest() for name in ("train", "validation", "test")} for seed in data
    }
    store.write_json(folder / "data.json", {"split": first.split, "sha256": hashes})
    store.write(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    store.write_json(folder / "summary.json", summary)
    report.write(folder, config, summary, study)
    log.info("finished in %.1f s", time.perf_counter() - start)
    return Run(folder, summary)


def _study(config: Config, folder: Path, data: dict[int, Data], parts: dict[int, Banks]) -> Study | None:
    """The task's own experiments; made once for these seeds, read again afterwards."""
    module = task(config.task).study
    if module is None or config.study == "none":
        return None
    made = report.read_study(folder)
    if made is None or made.facts.get("seeds") != list(config.seeds):
        models = {seed: load(folder, seed) for seed in config.seeds}
        made = importlib.import_module(f"redx.studies.{module}").study(config, data, models, parts)
        store.write_json(folder / "study.json", dataclasses.asdict(made))
    return made


def _router_accuracy(banks: Banks) -> float:
    """How often the router's first choice is the example's domain."""
    parts = max(banks.values(), key=lambda found: found.experts)
    return float((answers(parts.gates) == parts.domains).double().mean())


def _parameters(model: Model) -> dict[str, int]:
    counted = {f"{form}/{name}": bank.parameters() for (form, name), bank in model.banks.items() if form != "averaged"}
    modules = {"base": model.base.tensors().values(), **counted, "router": model.router.parameters()}
    modules |= {"ownership": model.owners.scorers.parameters()} if model.owners else {}
    return {name: sum(tensor.numel() for tensor in tensors) for name, tensors in modules.items()}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def solver(folder: str | os.PathLike[str], seed: int | None = None, rule: str | None = None) -> Solver:
    """What answers sentences: the decomposer and the experts of a finished run of `steps`."""
    model = load(folder, seed)
    if model.decomposer is None:
        raise RedxError(f"{folder} has no decomposer; make a run that has one with `redx run steps`.")
    return Solver(model.decomposer(), Executor(model, rule or model.rule))


def load(folder: str | os.PathLike[str], seed: int | None = None) -> Model:
    """The composed model of a finished run: of its first seed, unless told otherwise."""
    config, seed = _chosen_seed(Path(folder), seed)
    return _load_seed(Path(folder) / f"seed-{seed}", config)


def _chosen_seed(folder: Path, seed: int | None) -> tuple[Config, int]:
    config = store.read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    return config, seed
