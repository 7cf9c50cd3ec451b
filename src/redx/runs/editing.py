"""Change the experts of a run folder: add, remove, replace, train one alone; and retrain the router."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.data.labelled import read_labelled
from redx.errors import RedxError
from redx.io.files import check_name, write_json, write_tensors
from redx.models.base import Base
from redx.models.composed import Model, ModelInfo
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.models.persistence import read_base, read_info
from redx.runs.folder import choose_seed, load_seed, lock_run, write_parts
from redx.runs.pipeline import parts_of_test
from redx.seeding import generator
from redx.tasks import get_task
from redx.training.datasets import concatenate, read_shared, split_validation
from redx.training.experts import DTYPES, train_experts
from redx.training.features import embed_shared, embed_split
from redx.training.router import train_router

MIN_EXAMPLES = 8  # that an expert can be trained on
HELD_OUT = 0.1  # share of an expert's own data that is kept for its metrics


def add_expert(run: Path, folder: Path, seed: int | None = None) -> Model:
    """Add the expert in a folder to a run, and return the run's model.

    Parameters
    ----------
    run
        The run folder.
    folder
        Folder of an expert that was trained on the same base.
    seed
        Which seed of the run; the first by default.
    """
    with edit_run(run, seed) as (model, seed_folder):
        write_expert(model.experts[model.experts.add(folder)], seed_folder)
    return model


def remove_expert(run: Path, name: str, seed: int | None = None) -> Path:
    """Remove an expert from a run; return the folder that it is kept in.

    Parameters
    ----------
    run
        The run folder.
    name
        Name of the expert.
    seed
        Which seed of the run; the first by default.
    """
    with edit_run(run, seed) as (model, seed_folder):
        model.experts.remove(name)
        return move_out(seed_folder, name)


def replace_expert(run: Path, name: str, folder: Path, seed: int | None = None) -> tuple[Model, Path]:
    """Replace an expert of a run; return the run's model and the folder that the old expert is kept in.

    Parameters
    ----------
    run
        The run folder.
    name
        Name of the expert to replace.
    folder
        Folder of the new expert; it may be the old one's own folder.
    seed
        Which seed of the run; the first by default.
    """
    on_disk = Expert.load(folder)
    new = Expert(on_disk.info, on_disk.tensors())  # in memory, for its folder may be the one that is moved
    with edit_run(run, seed) as (model, seed_folder):
        model.experts.replace(name, new)
        kept = move_out(seed_folder, name)
        write_expert(new, seed_folder)
    return model, kept


@contextmanager
def edit_run(run: Path, seed: int | None = None) -> Iterator[tuple[Model, Path]]:
    """Lock a run for a change of its experts; at the end of the block the parts of the test split are computed anew."""
    config, seed = choose_seed(run, seed)
    seed_folder = run / f"seed-{seed}"
    with lock_run(run, config):
        model = load_seed(seed_folder, config)
        data = get_task(config.task).load(config, seed)  # before anything is changed
        yield model, seed_folder
        rewrite_parts(seed_folder, config, data)


def rewrite_parts(seed_folder: Path, config: RunConfig, data: Data) -> None:
    """Compute the parts of the test split for the experts that are there now."""
    model = load_seed(seed_folder, config)
    model.route_by_keys_if_needed()  # until the router is retrained
    for old in (seed_folder / "parts").glob("*.safetensors"):
        old.unlink()
    write_parts(seed_folder, parts_of_test(model, data))


def write_expert(expert: Expert, seed_folder: Path) -> Path:
    """Write an expert into the folder of a seed, and return its own folder."""
    folder = seed_folder / "experts" / check_name(expert.name)
    expert.save(folder)
    return folder


def move_out(seed_folder: Path, name: str) -> Path:
    """Move an expert to the seed's `removed` folder, and return where it is."""
    kept, number = seed_folder / "removed" / check_name(name), 1
    while kept.exists():
        number += 1
        kept = seed_folder / "removed" / f"{name} {number}"
    try:
        kept.parent.mkdir(exist_ok=True)
        shutil.move(seed_folder / "experts" / name, kept)
    except OSError as error:
        raise RedxError(
            f"Cannot move the expert {name!r} to {kept} ({error.strerror}); fix its permissions."
        ) from error
    return kept


def train_expert(
    run: Path,
    name: str,
    data: Path,
    out: Path,
    text: str | None = None,
    label: str | None = None,
    dtype: str = "float32",
    seed: int | None = None,
) -> Expert:
    """Train one expert alone from its own data, with the base and the shared data of a run, and write it.

    Parameters
    ----------
    run
        The run folder; only config.json and the seed's model.json, base.safetensors and shared.safetensors are read.
    name
        Name of the expert's domain.
    data
        Its examples: JSONL, CSV, Parquet or .npz.
    out
        Folder to write the expert to.
    text, label
        Columns of the file, where they have other names than usual.
    dtype
        Precision that the expert is stored in: float32, bfloat16 or float16.
    seed
        Which seed of the run; the first by default.
    """
    check_name(name)
    if dtype not in DTYPES:
        raise RedxError(f"An expert cannot be kept as {dtype!r}; choose one of {', '.join(DTYPES)}.")
    if (out / "expert.json").exists():
        raise RedxError(f"There is an expert in {out} already; choose another folder with --out.")
    config, seed = choose_seed(run, seed)
    seed_folder = run / f"seed-{seed}"
    info, base = read_info(seed_folder), read_base(seed_folder, config)
    own = embed_split(config, base, read_own_data(config, info, base, data, text, label))
    if len(own) < MIN_EXAMPLES:
        raise RedxError(f"{data} has {len(own)} examples; an expert needs at least {MIN_EXAMPLES}.")
    shared = embed_shared(config, base, read_shared(seed_folder), seed)
    rows = torch.randperm(len(own), generator=generator(seed, "own data", name))
    held = max(2, round(HELD_OUT * len(own)))
    dataset = shared.for_expert(name, own.only(rows[held:]), own.only(rows[:held]), info.domains)
    fingerprint = fingerprint_base(base, config, info.classes, info.shape)
    (expert,) = train_experts(config, [dataset], base, seed, info.unit, info.classes, fingerprint, dtype)
    expert.save(out)
    return expert


def read_own_data(
    config: RunConfig, info: ModelInfo, base: Base, file: Path, text: str | None, label: str | None
) -> Split:
    """Return a user's own examples of one domain, as the base reads them."""
    if not info.classes:
        raise RedxError(f"The experts of '{config.task}' give numbers, not labels, and cannot be trained from a file.")
    split = read_labelled(file, info.classes, None if base.encoder.reads_text else info.shape, text, label)
    base.encoder.prepare([split.inputs])
    return split


def retrain_router(
    run: Path,
    more: Mapping[str, Path],
    text: str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Train the router of a run for the experts that it has now.

    Parameters
    ----------
    run
        The run folder.
    more
        Data files by expert, for experts whose data the run does not have.
    text, label
        Columns of these files, where they have other names than usual.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    dict
        The experts that the router now has gates for, and the number of training examples.
    """
    config, seed = choose_seed(run, seed)
    if not config.router.is_trained:
        raise RedxError(f"{run} routes by the experts' own scores (keys): there is no router to train.")
    seed_folder = run / f"seed-{seed}"
    with lock_run(run, config):
        model = load_seed(seed_folder, config)
        names = model.experts.names
        data = get_task(config.task).load(config, seed)
        if unknown := sorted(set(more) - set(names)):
            raise RedxError(f"There is no expert {unknown[0]!r}; choose from {', '.join(names)}.")
        if lacking := [name for name in names if name not in data.domains and name not in more]:
            raise RedxError(
                f"{run} has no data of {lacking[0]!r} to train a router with; "
                f"give it with --domain {lacking[0]} --data FILE."
            )
        choices, _ = split_validation(data, config.ownership.calibration, seed)
        train = _rows_with_expert(model, embed_split(config, model.base, data.train))
        validation = _rows_with_expert(model, embed_split(config, model.base, data.validation.only(choices)))
        for name, file in more.items():
            own = embed_split(config, model.base, read_own_data(config, model.info, model.base, file, text, label))
            own = Split(own.inputs, own.labels, torch.full((len(own),), names.index(name)))
            held = torch.arange(len(own)) < max(1, round(HELD_OUT * len(own)))
            validation = concatenate([validation, own.only(held.nonzero()[:, 0])])
            train = concatenate([train, own.only((~held).nonzero()[:, 0])])
        router = train_router(config.router, names, train, validation, seed)
        write_tensors(seed_folder / "router.safetensors", router.state_dict())
        write_json(seed_folder / "model.json", dataclasses.asdict(dataclasses.replace(model.info, routed=names)))
        rewrite_parts(seed_folder, config, data)
    return {"experts": list(names), "examples": len(train)}


def _rows_with_expert(model: Model, split: Split) -> Split:
    """Return the examples whose domain has an expert; their domains count as the experts do."""
    domains = model.expert_index(split.domains)
    rows = (domains < len(model.experts)).nonzero()[:, 0]
    return Split(split.inputs[rows], split.labels[rows], domains[rows])
