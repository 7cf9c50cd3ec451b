"""The stages of a run in order: data, base, experts, router, parts, evaluation, study, report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import Banks, evaluate
from redx.composition.metrics import exact_interval
from redx.composition.parts import predicted_classes
from redx.composition.rules import RuleId, get_rule
from redx.composition.summary import Row, summarise
from redx.config import BankId, RunConfig
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.io.files import write_bytes, write_json, write_tensors
from redx.io.progress import progress
from redx.io.reading import exists
from redx.io.safetensors_files import read_tensors
from redx.models.banks import split_bank
from redx.models.base import Base
from redx.models.calibration import read_calibration, supported_risk, write_calibration
from redx.models.composed import Model, ModelInfo
from redx.models.encoder import build_encoder
from redx.models.fingerprint import fingerprint_base
from redx.report.content import Study
from redx.report.page import check_packages
from redx.runs.costs import describe_cost
from redx.runs.facts import compare_answers, describe_experts
from redx.runs.folder import SeedFolder, load, load_seed, lock_run
from redx.runs.parts import StoredParts, are_complete, read_parts, write_parts
from redx.runs.presets import configure
from redx.runs.reports import read_study, write_report
from redx.runs.tracking import check_tracker, recorder_of
from redx.runs.transaction import Transaction, edit
from redx.tasks import get_task
from redx.tasks.arithmetic.decomposers import train_decomposer
from redx.training.banks import train_jointly, train_pooled
from redx.training.base import train_base
from redx.training.datasets import SharedData, expert_datasets, select_shared, split_validation
from redx.training.experts import train_experts
from redx.training.features import EmbeddedSplits, embed_split, embed_splits
from redx.training.recording import recording
from redx.training.router import train_router

log = logging.getLogger("redx")

SPLITS = ("train", "validation", "test")
PLAIN = BankId("residual", "plain")  # the bank that joint training (stage 4) starts from


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    folder
        The run folder.
    summary
        The content of summary.json.
    """

    folder: Path
    summary: dict[str, Any]

    @property
    def report(self) -> Path:
        """The report's page."""
        return self.folder / "report.html"

    def load(self, seed: int | None = None) -> Model:
        """Return the composed model of one seed, the first by default."""
        return load(self.folder, seed)


def run(
    task: str,
    preset: str = "default",
    seeds: Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    assignments: Sequence[str] = (),
    track: str | None = None,
    **changes: Any,
) -> Run:
    """Run a task from data to report; an interrupted run continues with the same call and gives the same numbers.

    Parameters
    ----------
    task
        Name of a task; `redx list` shows them.
    preset
        Named settings of the task.
    seeds
        One independent repetition each.
    out
        The run folder; `runs/TASK` by default.
    assignments
        Settings by their dotted names, such as `base.trunk.depth=3`.
    track
        `tensorboard`: write training curves into the folder `track` of the run, which changes no figure.
    **changes
        Settings that differ from the preset, as `redx.runs.presets.configure` takes them.

    Returns
    -------
    Run
        The folder and the summary.

    Examples
    --------
    >>> import redx
    >>> finished = redx.run("toy", preset="quick")  # doctest: +SKIP
    >>> finished.summary["rules"]["red"]["accuracy"]["mean"]  # doctest: +SKIP
    1.0
    """
    check_packages()
    check_tracker(track)
    config = configure(task, preset, assignments, seeds=seeds, **changes)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RedxError("There is no CUDA device here; leave out --device or choose --device cpu.")
    folder = Path(out or Path("runs") / task)
    start = time.perf_counter()
    data = {seed: get_task(task).load(config, seed) for seed in config.seeds}
    build_encoder(config)  # so that a wrong backbone is refused before anything is written
    if config.controlled_bank:
        for seed in config.seeds:  # and so is a risk that the calibration examples do not support
            _, calibration = split_validation(data[seed], config.ownership.calibration, seed)
            supported_risk(config.risk, len(calibration), config.confidence, tell=False)
    with lock_run(folder, config), _use_threads(config.threads):
        seconds = {}
        for seed in config.seeds:
            with recording(recorder_of(track, folder, seed)):
                seconds[seed] = train_seed(config, data[seed], seed, folder / f"seed-{seed}")
        return _conclude(config, folder, data, seconds, start)


@contextlib.contextmanager
def _use_threads(count: int) -> Iterator[None]:
    """Use this many torch threads inside the block; 0 leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_seed(config: RunConfig, data: Data, seed: int, folder: Path) -> dict[str, float]:
    """Train everything of one seed, each stage once; return the seconds that each stage took."""
    stages = SeedFolder(folder)
    shape = tuple(data.train.inputs.shape[1:])
    info = ModelInfo(data.domains, data.classes, tuple(data.domain_of_classes()), data.unit, shape, routed=data.domains)
    if not exists(folder / "model.json"):  # a retrained router may know other experts
        write_json(folder / "model.json", dataclasses.asdict(info))

    def stage(name: str, compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        file = folder / f"{name}.safetensors"
        stages.stage(name, lambda: write_tensors(file, compute()), file)
        return read_tensors(file)

    def write_all_parts() -> None:
        with edit(folder) as transaction:
            write_test_parts(transaction, load_seed(folder, config), data)

    encoder = build_encoder(config)
    if encoder.reads_text:
        stages.stage("reading", lambda: encoder.prepare(getattr(data, name).inputs for name in SPLITS))
    base = Base.from_tensors(stage("base", lambda: train_base(config, data, seed).tensors()), encoder)
    shared = SharedData.from_tensors(stage("shared", lambda: select_shared(data, config, seed).tensors()))
    if "parts" in stages.done:
        if not are_complete(folder.parent, seed):
            write_all_parts()
        return stages.done
    embedded: list[EmbeddedSplits] = []
    stages.stage("features", lambda: embedded.append(embed_splits(config, base, data, shared, seed)))
    splits = embedded[0] if embedded else embed_splits(config, base, data, shared, seed)  # from the cache

    def train_all_experts() -> None:
        datasets = expert_datasets(data.domains, splits.train, splits.shared, splits.validation)
        fingerprint = fingerprint_base(base, config, info.classes, info.shape)
        for expert in train_experts(config, datasets, base, seed, data.unit, data.classes, fingerprint):
            expert.save(folder / "experts" / expert.name)

    stages.stage("experts", train_all_experts)
    if config.of_form("pooled"):
        stage("pooled", lambda: train_pooled(config, base, splits.train, splits.validation, seed, data.unit))
    if config.router.is_trained:
        stage(
            "router",
            lambda: train_router(config.router, data.domains, splits.train, splits.validation, seed).state_dict(),
        )
    if config.integrate:
        stage("integration", lambda: _train_jointly(folder, config, splits.train, seed))
    if config.decomposer != "none":
        stage("decomposer", lambda: train_decomposer(config.decomposer, seed, config.backbone).tensors())
    stages.stage("parts", write_all_parts)
    return stages.done


def _train_jointly(folder: Path, config: RunConfig, train: Split, seed: int) -> dict[str, Tensor]:
    """Return the plain residual bank and the router after joint training, by `DOMAIN.tensor` and `router.tensor`."""
    model = load_seed(folder, config.model_copy(update={"integrate": False}))
    assert model.router is not None  # `configure` refuses joint training without a trained router
    training = config.banks[PLAIN].training
    bank, router = train_jointly(training, model.bank(PLAIN), model.router.network, model.base, train, seed)
    tensors = {
        f"{name}.{key}": value
        for name, expert in zip(model.experts.names, split_bank(bank), strict=True)
        for key, value in expert.items()
    }
    return tensors | {f"router.{name}": value for name, value in router.state_dict().items()}


def parts_of_test(model: Model, data: Data) -> Banks:
    """Return the parts of every bank of a model on the test split."""
    test = embed_split(model.config, model.base, data.test)
    domains = model.expert_index(test.domains)
    return {bank_id: model.parts_of(test.inputs, bank_id, test.labels, domains) for bank_id in model.banks}


def write_test_parts(transaction: Transaction, model: Model, data: Data) -> None:
    """Compute the parts of the test split for the experts that a model has now, and write them on commit."""
    model.route_by_keys_if_needed()  # until the router is retrained
    if model.config.controlled_bank:
        files = transaction.new("risk.json"), transaction.new("thresholds.safetensors")
        write_calibration(*files, model.calibrated())
    names = model.domain_names, len(model.experts), model.classes
    write_parts(transaction.new("parts"), parts_of_test(model, data), *names)


def _conclude(
    config: RunConfig, folder: Path, data: dict[int, Data], stage_seconds: dict[int, dict[str, float]], start: float
) -> Run:
    """Turn the parts of every seed into results, study, summary and report."""
    first = data[config.seeds[0]]
    began = time.perf_counter()
    parts = {seed: read_parts(folder, seed) for seed in config.seeds}
    rows: list[Row] = []
    with progress("evaluation", len(parts)) as advance:
        for seed, stored in parts.items():
            sweep = {"kinds": config.noise, "levels": config.levels, "epsilons": config.epsilons}
            rows += evaluate(stored.banks, task=config.task, seed=seed, domains=stored.domains, **sweep)
            advance(1)
    evaluated = time.perf_counter()
    study = _study(config, folder, data, parts)
    seconds = {
        stage: sum(times.get(stage, 0.0) for times in stage_seconds.values())
        for stage in stage_seconds[config.seeds[0]]
    }
    seconds |= {"evaluation": evaluated - began, "study": time.perf_counter() - evaluated}
    hashes = {seed: {name: getattr(data[seed], name).digest() for name in SPLITS} for seed in data}
    model = load_seed(folder / f"seed-{config.seeds[0]}", config)
    summary = {
        "schema": 1,
        "task": config.task,
        "preset": config.preset,
        "seeds": list(config.seeds),
        "backbone": config.backbone,
        "interval": "95 %, Student's t over seeds" if len(parts) > 1 else "95 %, Wilson over test examples",
        "data": {
            **{name: len(getattr(first, name)) for name in SPLITS},
            "split": first.split,
            "seen_in_train": first.seen_in_train,
        },
        "domains": list(first.domains),
        "rules": _with_risk(summarise(rows, config.main, len(first.test)), config, folder, len(first.test)),
        "router": {"accuracy": fmean(_router_accuracy(stored.banks) for stored in parts.values())},
        **compare_answers(config, parts, [hashes[seed]["test"] for seed in config.seeds]),
        "experts": describe_experts(model),
        "study": study.facts if study else {},
        "cost": {
            "seconds": {**seconds, "total": sum(seconds.values())},
            "wall_seconds": time.perf_counter() - start,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            **describe_cost(config, folder, first, model),
        },
    }
    write_json(folder / "data.json", {"split": first.split, "sha256": hashes})
    write_bytes(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    write_json(folder / "summary.json", summary)
    write_report(folder, config, summary, study)
    log.info("finished in %.1f s", time.perf_counter() - start)
    return Run(folder, summary)


def _with_risk(rules: dict[str, Any], config: RunConfig, folder: Path, examples: int) -> dict[str, Any]:
    """Return the section `rules` of the summary with the promise and the harm of every rule under risk control."""
    by_seed = [read_calibration(folder / f"seed-{seed}") for seed in config.seeds]
    kept = [calibration for calibration in by_seed if calibration is not None]
    bank_id = config.controlled_bank
    if bank_id is None or not kept:
        return rules
    for name, figures in rules.items():
        rule, bank = get_rule(RuleId.parse(name).rule), RuleId.parse(name).bank
        if rule.form != bank_id.form or rule.adversary is None or (bank or config.main.get(rule.form)) != bank_id.name:
            continue
        cutoffs = [getattr(calibration.cutoffs, rule.adversary) for calibration in kept]
        harm = figures["worst_harm"]
        low, high = exact_interval(round(harm * examples), examples)
        figures["risk"] = {
            "alpha": max(calibration.risk for calibration in kept),
            "confidence": kept[0].confidence,
            "score": kept[0].score,
            "cutoff": fmean(cutoffs) if all(map(math.isfinite, cutoffs)) else None,
            "calibration": min(calibration.examples for calibration in kept),
            "harm": {"mean": harm, "low": low, "high": high},
        }
    return rules


def _study(config: RunConfig, folder: Path, data: dict[int, Data], parts: dict[int, StoredParts]) -> Study | None:
    """Return the task's own experiments; they run once for these seeds and are read from disk afterwards."""
    module = get_task(config.task).study
    if module is None or config.study == "none":
        return None
    study = read_study(folder)
    if study is None or study.facts.get("seeds") != list(config.seeds):
        models = {seed: load(folder, seed) for seed in config.seeds}
        banks = {seed: stored.banks for seed, stored in parts.items()}
        study = importlib.import_module(module).study(config, data, models, banks)
        write_json(folder / "study.json", dataclasses.asdict(study))
    return study


def _router_accuracy(banks: Banks) -> float:
    """Return how often the largest gate is that of the example's domain."""
    parts = max(banks.values(), key=lambda parts: parts.experts)
    return float((predicted_classes(parts.gates) == parts.domains).double().mean())
