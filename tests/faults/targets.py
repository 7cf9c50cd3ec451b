"""Every file that redx reads, made once and tiny, with the function that reads it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch

import redx
from faults.mutations import (
    Mutation,
    mutate_arrays,
    mutate_json,
    mutate_kit,
    mutate_lines,
    mutate_parquet,
    mutate_pt,
    mutate_safetensors,
)
from helpers.checked_runs import write_risk
from helpers.own_data import draw_clouds, text_records, write_arrays, write_table
from helpers.parts import draw_parts, write_parts
from helpers.tampering import reseal, resealed
from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import check_adapter
from redx.adapters.composed import ComposedLM
from redx.composition.evaluation import certify, evaluate, match_banks
from redx.composition.files import certify_parts
from redx.composition.owners import DomainThresholds, OwnerFile, join_owners, read_owner_file, write_owner_file
from redx.composition.risk import RiskControl
from redx.composition.summary import read_summary
from redx.config import BankId
from redx.data import tables
from redx.data.labelled import read_labelled
from redx.io.feature_cache import FeatureCache, cached_rows
from redx.io.files import check_name, natural_order, to_safe_name
from redx.io.manifest import MANIFEST, SIGNATURE, read_manifest
from redx.io.signing import make_key
from redx.model.model import Model
from redx.models.calibration import read_controls, write_calibration
from redx.models.expert import Expert
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.runs.check import Floors, check_run, read_settings
from redx.runs.checkpoint import evaluate_checkpoint, export_run
from redx.runs.editing import train_expert
from redx.runs.folder import SeedFolder, load, lock_run, read_config
from redx.runs.inspection import inspect_path
from redx.runs.integrity import sign_folder, verify_folder, verify_signature
from redx.runs.kit import read_kit, write_kit
from redx.runs.parts import read_parts
from redx.runs.reports import read_study, write_reports
from redx.runs.shrinking import shrink
from redx.tasks.custom.loading import load_features
from redx.training.datasets import expert_data, read_shared

SCRATCH = re.compile(r"/tmp[a-z0-9_]{8}/")  # what `tempfile` calls its folders
TEXTS = ["one", "two", "three"]
NAMES = [
    "", ".", "..", "/", "a/b", "a\0b", "x" * 300, "é" * 200, "\ud800", "con", "all", "a" * 99 + "😀", "9" * 5000, " ",
    "a\n", "\u202e", "run.log", ".x.tmp", "seed-0", "~", "-x", "x.npz", "x.jsonl", "x.parquet", "x.safetensors",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A file, how it is mutated, how often it is chosen, and the function that reads it.

    `manifest` is the folder whose manifest lists the file.
    """

    name: str
    path: Path | None
    mutations: list[Mutation]
    read: Callable[[Random], object]
    weight: float = 1.0
    manifest: Path | None = None


@dataclass(frozen=True)
class Material:
    """A finished run with its model, an expert beside it, tables, checkpoints and caches; and a run of adapters."""

    folder: Path
    run: Path
    model: Model
    expert: Path
    adapters: Path
    base: BaseLM

    @property
    def seed(self) -> Path:
        """The folder of the run's only seed."""
        return self.run / "seed-0"


def make_material(folder: Path, adapters: Path) -> Material:
    """Make a tiny run and all other files but the run of adapters in an empty folder."""
    arrays = write_arrays(folder / "data.npz", **draw_clouds(120))
    epochs = {"base": 1, "experts": 1, "router": 1}
    run = folder / "run"
    small = {"use": True, "size": 20}  # a base that is solved in a moment
    redx.run(
        "features", "quick", out=run, file=str(arrays), study="none", epochs=epochs, noise=["swap"], statistics=small
    )
    (run / "seed-0" / "state.json").write_text('{"version": 1}')
    write_risk(Path(shutil.copytree(run, folder / "calibrated")), 0, 0.01)
    write_owners(folder)
    (folder / "redx.toml").write_text('[check]\nmin_accuracy = 0.9\nrule = "red"\nagainst = "other"\n')
    line = Line("red", (0.0, 1.0), (0.5, 0.25))
    figure = Figure("f", "caption", (Panel("p", "x", "y", (line,)),))
    study = Study({"seeds": [0]}, (Table("t", ("a", "b"), (("x", 1.5), (None, 2))),), (figure,))
    (run / "study.json").write_text(json.dumps(dataclasses.asdict(study)))
    for name in ("table.jsonl", "table.csv", "table.parquet"):
        write_table(folder / name, text_records(24))
    for name in ("parts.npz", "parts.safetensors"):
        write_parts(folder / name, draw_parts(24, 3, 4, dtype=torch.float32), confidences=True)
    export_run(run, folder / "checkpoint.safetensors")
    torch.save({"state_dict": {"layers.0.weight": torch.ones(2, 3), "head.bias": torch.ones(2)}}, folder / "state.pt")
    cache = FeatureCache(folder / "features", 2, {"fingerprint": "x", "pooling": "mean"})
    cache.add([[(text, torch.ones(1, 2)) for text in TEXTS]])
    expert = Path(shutil.copytree(run / "seed-0" / "experts" / "0", folder / "expert"))
    reseal(run)
    reseal(run / "seed-0")
    write_kit(run, folder / "kit.zip")
    make_key(folder / "me.key")
    sign_folder(Path(shutil.copytree(expert, folder / "signed")), folder / "me.key")
    model = load(run)
    model.save_pretrained(folder / "saved")
    model.experts.remove("0")
    return Material(folder, run, model, expert, adapters, load_base(read_config(adapters).backbone))


def write_owners(folder: Path) -> None:
    """Write what an owner of a domain sends, and the risk control of a model that was calibrated by it."""
    values = (float("-inf"), *(number / 8 for number in range(30)), float("inf"))
    one = DomainThresholds(examples=32, simplex=values, box=values[::-1], mistakes=(0, 1) * 16)
    write_owner_file(folder / "owner.json", OwnerFile(seed=0, base="b", model="m", experts=("x",), domains={"x": one}))
    control, seed = join_owner(folder), folder / "owned" / "seed-0"
    seed.mkdir(parents=True)
    places = {"class_domains": torch.tensor([0, 1]), "domain_names": ("x", "y"), "domains": torch.arange(6) % 2}
    thresholds = {region: torch.linspace(-1, 1, 6) for region in ("simplex", "box")}
    compared = {BankId("residual", "shared"): RiskControl.from_thresholds(thresholds, 0.2, by="domain", **places)}
    write_calibration(seed / "risk.json", seed / "thresholds.safetensors", control, compared)


def join_owner(folder: Path) -> RiskControl:
    """Return the control that the file of an owner gives, after its cut-offs were computed."""
    sent = {"owner.json": read_owner_file(folder / "owner.json")}
    control = join_owners(sent, 0.2, class_domains=(0, 1), domain_names=("x", "y"), names=("x",))
    control.at(0.5).to_json()
    control.at(0.3, 0.9, budget="routing" if control.mistakes is not None else None).to_json()
    control.cutoffs_for(torch.eye(2))
    return control


def make_targets(material: Material) -> list[Target]:
    """Return every file with the function that reads it."""
    folder, run, seed, x = material.folder, material.run, material.seed, torch.zeros(4, 6)
    config = read_config(run)
    rows = draw_clouds(8)["x"]

    def predict(_: Random) -> None:
        model = load(run)
        model.predict(rows)
        model.experts.fingerprint  # noqa: B018

    def add_expert(_: Random) -> None:
        with material.model.experts.changing() as library:
            library.add(Expert.load(material.expert))
            with suppress(redx.RedxError), material.model.using("red", router="keys"):
                material.model.predict(rows)

    def measure(_: Random) -> None:
        stored = read_parts(run, 0)
        banks = stored.banks
        evaluate(banks, task="features", seed=0, domains=stored.domains, rules=["red"], kinds=["swap"], levels=[0.5])
        for rule, _bank, parts in match_banks(banks, ["moe"]):
            certify(rule, parts)

    def foreign_parts(path: Path) -> Callable[[Random], object]:
        def read(draw: Random) -> None:
            rule, score = draw.choice(["red", "sum", "moe", "uniform"]), draw.choice(["gain", "answer"])
            risk = 0.2 if rule in ("red", "sum") else None
            certify_parts(path, rule, risk=risk, score=score, kinds=["swap", "jitter"], levels=[0.5])

        return read

    def check_risk(_: Random) -> None:
        check_run(folder / "calibrated", Floors(max_risk=0.01))

    def read_owned(_: Random) -> None:
        for control in read_controls(folder / "owned" / "seed-0").values():
            control.at(0.5).to_json()

    def read_rows(path: Path) -> Callable[[Random], object]:
        def read(_: Random) -> None:
            read_labelled(path, ("no", "yes"), None)

        return read

    def features(_: Random) -> None:
        load_features(config, 0)

    def shared(_: Random) -> None:
        anchors = read_shared(seed / "shared.safetensors")
        expert_data("0", anchors, anchors, anchors, ("0", "1"))

    def checkpoint(draw: Random) -> None:
        path = folder / "checkpoint.safetensors"
        inspect_path(path)
        if draw.random() < 0.3:
            evaluate_checkpoint(path)

    def inspect(name: str) -> Callable[[Random], object]:
        return lambda _: inspect_path(folder / name)

    def shrink_pt(_: Random) -> None:
        inspect_path(folder / "state.pt")
        shrink(folder / "state.pt", 1, out=folder / "slim.safetensors")

    def verify(_: Random) -> None:
        with resealed(run, seed):
            verify_folder(run)
            load(run)

    def manifest(draw: Random) -> None:
        verify_folder(run)
        draw.choice([predict, measure])(draw)

    def kit(draw: Random) -> None:
        try:
            read = read_kit(folder / "kit.zip")
            read.check_base()
        except redx.RedxError as error:
            if SCRATCH.search(str(error)):
                raise ValueError(f"a temporary folder of our own says nothing to the user: {error}") from error
            raise
        if draw.random() < 0.1:
            try:
                train_expert(read, "new", folder / "data.npz", folder / "trained")
            finally:
                shutil.rmtree(folder / "trained", ignore_errors=True)

    def signed(_: Random) -> None:
        verify_signature(folder / "signed", folder / "me.key.pub")

    def sign(_: Random) -> None:
        sign_folder(material.expert, folder / "me.key")

    def saved(_: Random) -> None:
        model = load(folder / "saved")
        model.predict(rows)
        if model.calibration_set is not None:
            model.calibration_set()

    def compose(_: Random) -> None:
        composed = ComposedLM.from_library(library, material.base)
        try:
            composed.scores("abc")
        finally:
            composed.stack.close()

    def foreign_adapter(_: Random) -> None:
        check_adapter(library / "adapters" / "lower", material.base)

    def measure_adapters(_: Random) -> None:
        stored = read_parts(material.adapters, 0)
        evaluate(stored.banks, task="adapters", seed=0, domains=stored.domains, rules=["red"], kinds=[], levels=[])

    def cache(_: Random) -> None:
        FeatureCache(folder / "features", 2, {"fingerprint": "x", "pooling": "mean"}).get(TEXTS)

    def embeddings(_: Random) -> None:
        cached_rows("rows", 4, lambda: [x]).sum()

    def names(draw: Random) -> None:
        name = draw.choice(NAMES) if draw.random() < 0.6 else "".join(chr(draw.randrange(1, 0x3000)) for _ in range(9))
        natural_order(name)
        assert to_safe_name(to_safe_name(name)) == to_safe_name(name)
        path = Path(folder / "names" / name) if draw.random() < 0.8 else Path(name)
        readers: list[Callable[[], object]] = [
            lambda: check_name(name),
            lambda: load(path),
            lambda: Expert.load(path),
            lambda: inspect_path(path) if path.name not in ("", "..") and not path.is_absolute() else None,
            lambda: tables.read_table(path.with_name(path.name + ".jsonl") if path.name else path, lambda _: None),
            lambda: lock_run(folder / "names" / name.replace("/", "_"), config).__enter__(),
        ]
        draw.choice(readers)()

    library = material.adapters / "seed-0"
    adapter = library / "adapters" / "lower"
    embeddings(Random(0))
    (folder / "names").mkdir(exist_ok=True)
    numbers, jsons, tensors = [mutate_arrays], [mutate_json], [mutate_safetensors]
    shard = next((folder / "features").glob("*.index.npy"))
    rows_file = shard.with_name(shard.name.replace(".index", ""))
    embedded = sorted((folder / "cache" / "embeddings").glob("rows.*")) or sorted(_embeddings().glob("rows.*"))
    part = sorted((seed / "parts").glob("residual-*"))[0]
    targets = [
        Target("table.jsonl", folder / "table.jsonl", [mutate_lines], read_rows(folder / "table.jsonl"), 3),
        Target("table.csv", folder / "table.csv", [mutate_lines], read_rows(folder / "table.csv"), 3),
        Target("table.parquet", folder / "table.parquet", [mutate_parquet], read_rows(folder / "table.parquet"), 3),
        Target("data.npz", folder / "data.npz", numbers, features, 3),
        Target("parts.npz", folder / "parts.npz", numbers, foreign_parts(folder / "parts.npz"), 2),
        Target(
            "parts.safetensors", folder / "parts.safetensors", tensors, foreign_parts(folder / "parts.safetensors"), 2
        ),
        Target("expert.json", material.expert / "expert.json", jsons, add_expert, 4),
        Target("expert.safetensors", material.expert / "expert.safetensors", tensors, add_expert, 4),
        Target("statistics", material.expert / "statistics.safetensors", tensors, add_expert, 4),
        Target("head", seed / "head.safetensors", tensors, predict, 1),
        Target("head.json", seed / "head.json", jsons, predict, 2),
        Target("config.json", run / "config.json", jsons, predict, 3),
        Target("model.json", seed / "model.json", jsons, predict, 2),
        Target("state.json", seed / "state.json", jsons, predict, 0.5),
        Target("summary.json", run / "summary.json", jsons, lambda _: read_summary(run / "summary.json"), 3),
        Target("report", run / "summary.json", jsons, lambda _: write_reports([run], folder), 0.02),
        Target("study.json", run / "study.json", jsons, lambda _: read_study(run), 2),
        Target("stages.json", seed / "stages.json", jsons, lambda _: SeedFolder(seed), 2),
        Target("data.json", run / "data.json", jsons, lambda _: export_run(run, folder / "again.safetensors"), 0.5),
        Target("risk.json", folder / "calibrated/seed-0/risk.json", jsons, check_risk, 0.5),
        Target("thresholds", folder / "calibrated/seed-0/thresholds.safetensors", tensors, check_risk, 0.5),
        Target("owner.json", folder / "owner.json", jsons, lambda _: join_owner(folder), 2),
        Target("owned risk.json", folder / "owned/seed-0/risk.json", jsons, read_owned, 0.5),
        Target("owned thresholds", folder / "owned/seed-0/thresholds.safetensors", tensors, read_owned, 0.5),
        Target("redx.toml", folder / "redx.toml", [mutate_lines], lambda _: read_settings(run), 2),
        Target("base", seed / "base.safetensors", tensors, predict, 1),
        Target("router", seed / "router.safetensors", tensors, predict, 1),
        Target("pooled", seed / "pooled.safetensors", tensors, predict, 1),
        Target("shared", seed / "shared.safetensors", tensors, shared, 2),
        Target("parts", part, tensors, measure, 1),
        Target("checkpoint", folder / "checkpoint.safetensors", tensors, checkpoint, 2),
        Target("state.pt", folder / "state.pt", [mutate_pt], shrink_pt, 3),
        Target("features", rows_file, [], cache, 1),
        Target("features.index", shard, [], cache, 1),
        Target("features.about", folder / "features" / "about.json", jsons, cache, 1),
        *[Target(f"embeddings {path.suffix}", path, [], embeddings, 0.5) for path in embedded],
        *[
            Target(f"inspect {path.name}", path, jsons, lambda _, path=path: inspect_path(path), 0.5)
            for path in (run / "config.json", seed / "model.json")
        ],
        Target("inspect data.npz", folder / "data.npz", numbers, inspect("data.npz"), 0.5),
        Target("names", None, [], names, 2),
        Target("kit.zip", folder / "kit.zip", [mutate_kit], kit, 3),
        Target("manifest.json", seed / MANIFEST, jsons, manifest, 1.5),
        Target("manifest.json of run", run / MANIFEST, jsons, manifest, 1.5),
        Target("signature.json", folder / "signed" / SIGNATURE, jsons, signed, 1),
        Target("public key", folder / "me.key.pub", [mutate_lines], signed, 0.5),
        Target("private key", folder / "me.key", [mutate_lines], sign, 0.5),
        *[
            Target(f"verify {path.name}", path, jsons if path.suffix == ".json" else tensors, verify, 0.5)
            for path in (run / "config.json", run / "summary.json", seed / "model.json", seed / "state.json", part)
        ],
        *[
            Target(f"saved {name}", folder / "saved" / name, jsons if name.endswith(".json") else tensors, saved, 0.5)
            for name in ("config.json", "model.json", "summary.json", "calibration.safetensors")
        ],
        Target("library.json", library / "library.json", jsons, compose, 1),
        Target("adapter ownership", adapter / "ownership.safetensors", tensors, compose, 0.5),
        Target("adapter router", library / "router.safetensors", tensors, compose, 0.5),
        Target("adapter_config.json", adapter / "adapter_config.json", jsons, foreign_adapter, 1),
        Target("adapter_model", adapter / "adapter_model.safetensors", tensors, foreign_adapter, 1),
        Target("adapter parts", library / "parts" / "residual-plain.safetensors", tensors, measure_adapters, 1),
    ]
    return [target if "verify" in target.name else replace(target, manifest=_listing(target)) for target in targets]


def _listing(target: Target) -> Path | None:
    """Return the nearest folder above a file whose manifest lists it."""
    path = target.path or Path()
    return next((one for one in path.parents if str(path.relative_to(one)) in (read_manifest(one) or {})), None)


def _embeddings() -> Path:
    from redx.io.cache import cache_folder

    return cache_folder() / "embeddings"
