"""Every file that redx reads, made once and tiny, with the function that reads it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

import redx
from faults.mutations import (
    Mutation,
    mutate_arrays,
    mutate_json,
    mutate_lines,
    mutate_parquet,
    mutate_pt,
    mutate_safetensors,
)
from helpers.checked_runs import write_risk
from helpers.own_data import draw_clouds, text_records, write_arrays, write_table
from helpers.parts import draw_parts, write_parts
from redx.composition.evaluation import certify, evaluate, match_banks
from redx.composition.files import certify_parts
from redx.composition.summary import read_summary
from redx.data import tables
from redx.data.labelled import read_labelled
from redx.io.feature_cache import FeatureCache, cached_rows
from redx.io.files import check_name, natural_order, to_safe_name
from redx.model.model import Model
from redx.models.expert import Expert
from redx.report.content import Figure, Line, Panel, Study, Table
from redx.runs.check import Floors, check_run, read_settings
from redx.runs.checkpoint import evaluate_checkpoint, export_run
from redx.runs.folder import SeedFolder, load, lock_run, read_config
from redx.runs.inspection import inspect_path
from redx.runs.parts import read_parts
from redx.runs.reports import read_study, write_reports
from redx.runs.shrinking import shrink
from redx.tasks.custom.loading import load_features
from redx.training.datasets import expert_data, read_shared

TEXTS = ["one", "two", "three"]
NAMES = [
    "", ".", "..", "/", "a/b", "a\0b", "x" * 300, "é" * 200, "\ud800", "con", "all", "a" * 99 + "😀", "9" * 5000, " ",
    "a\n", "\u202e", "run.log", ".x.tmp", "seed-0", "~", "-x", "x.npz", "x.jsonl", "x.parquet", "x.safetensors",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A file, how it is mutated, how often it is chosen, and the function that reads it."""

    name: str
    path: Path | None
    mutations: list[Mutation]
    read: Callable[[Random], object]
    weight: float = 1.0


@dataclass(frozen=True)
class Material:
    """A finished run with its model, an expert beside it, tables, checkpoints and caches."""

    folder: Path
    run: Path
    model: Model
    expert: Path

    @property
    def seed(self) -> Path:
        """The folder of the run's only seed."""
        return self.run / "seed-0"


def make_material(folder: Path) -> Material:
    """Make a tiny run and all other files in an empty folder."""
    arrays = write_arrays(folder / "data.npz", **draw_clouds(120))
    epochs = {"base": 1, "experts": 1, "router": 1}
    run = folder / "run"
    redx.run("features", "quick", out=run, file=str(arrays), study="none", epochs=epochs, noise=["swap"])
    (run / "seed-0" / "state.json").write_text('{"version": 1}')
    write_risk(Path(shutil.copytree(run, folder / "calibrated")), 0, 0.01)
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
    model = load(run)
    model.experts.remove("0")
    return Material(folder, run, model, expert)


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

    embeddings(Random(0))
    (folder / "names").mkdir(exist_ok=True)
    numbers, jsons, tensors = [mutate_arrays], [mutate_json], [mutate_safetensors]
    shard = next((folder / "features").glob("*.index.npy"))
    rows_file = shard.with_name(shard.name.replace(".index", ""))
    embedded = sorted((folder / "cache" / "embeddings").glob("rows.*")) or sorted(_embeddings().glob("rows.*"))
    part = sorted((seed / "parts").glob("residual-*"))[0]
    return [
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
        Target("config.json", run / "config.json", jsons, predict, 3),
        Target("model.json", seed / "model.json", jsons, predict, 2),
        Target("state.json", seed / "state.json", jsons, predict, 0.5),
        Target("summary.json", run / "summary.json", jsons, lambda _: read_summary(run / "summary.json"), 3),
        Target("report", run / "summary.json", jsons, lambda _: write_reports([run], folder), 0.02),
        Target("study.json", run / "study.json", jsons, lambda _: read_study(run), 2),
        Target("stages.json", seed / "stages.json", jsons, lambda _: SeedFolder(seed), 2),
        Target("data.json", run / "data.json", jsons, lambda _: export_run(run, folder / "again.safetensors"), 0.5),
        Target("risk.json", folder / "calibrated/seed-0/risk.json", jsons, check_risk, 0.5),
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
    ]


def _embeddings() -> Path:
    from redx.io.cache import cache_folder

    return cache_folder() / "embeddings"
