"""Experts that come and go in a run folder: added, removed, replaced, trained alone; and a router trained anew."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from redx.config import RunConfig
from redx.data import labelled
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.io import files
from redx.models import encoder, fingerprint, persistence
from redx.models.base import Base
from redx.models.composed import Model, ModelInfo
from redx.models.encoder import TextEncoder
from redx.models.expert import Expert
from redx.runs import pipeline
from redx.runs.folder import choose_seed, load_seed, lock_run
from redx.seeding import generator
from redx.tasks import get_task
from redx.training import datasets, experts, features
from redx.training.router import train_router

LEAST = 8  # examples that an expert can be trained on


HELD = 0.1  # share of an expert's own data kept for its figures


@contextmanager
def edit_run(run: Path, seed: int | None = None) -> Iterator[tuple[Model, Path]]:
    """The model of a seed and its folder, held for a change; what was measured is measured anew afterwards."""
    config, seed = choose_seed(run, seed)
    place = run / f"seed-{seed}"
    with lock_run(run, config):
        model, data = (
            load_seed(place, config),
            get_task(config.task).load(config, seed),
        )  # before anything changes
        yield model, place
        rewrite_parts(place, config, data)


def rewrite_parts(place: Path, config: RunConfig, data: Data) -> None:
    """What every bank says about the test split, by the experts that are there now."""
    model = load_seed(place, config)
    if set(model.domains) - set(model.facts.routed):
        model.routing = "keys"  # until the router is trained anew
    for old in (place / "parts").glob("*.safetensors"):
        old.unlink()
    pipeline.save_parts(place, model, data)


def write_expert(expert: Expert, place: Path) -> Path:
    """Write an expert into the seed's folder."""
    folder = place / "experts" / files.check_name(expert.name)
    expert.save(folder)
    return folder


def move_out(place: Path, name: str) -> Path:
    """Move an expert out of the run; nothing is lost."""
    kept, number = place / "removed" / files.check_name(name), 1
    while kept.exists():
        number += 1
        kept = place / "removed" / f"{name} {number}"
    try:
        kept.parent.mkdir(exist_ok=True)
        shutil.move(place / "experts" / name, kept)
    except OSError as error:
        raise RedxError(
            f"Cannot move the expert {name!r} to {kept} ({error.strerror}); mend its permissions."
        ) from error
    return kept


def add_expert(run: Path, folder: Path, seed: int | None = None) -> Model:
    """Add an expert to a run."""
    with edit_run(run, seed) as (model, place):
        write_expert(model.experts[model.experts.add(folder)], place)
    return model


def remove_expert(run: Path, name: str, seed: int | None = None) -> Path:
    """Remove an expert from a run; gives where it is kept."""
    with edit_run(run, seed) as (model, place):
        model.experts.remove(name)
        return move_out(place, name)


def replace_expert(run: Path, name: str, folder: Path, seed: int | None = None) -> tuple[Model, Path]:
    """Replace an expert of a run; gives where the old one is kept."""
    new = Expert.read(folder)
    new = Expert(new.facts, new.tensors())  # in memory: its own folder may be the one that moves
    with edit_run(run, seed) as (model, place):
        model.experts.replace(name, new)
        kept = move_out(place, name)
        write_expert(new, place)
    return model, kept


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
    """Train one expert alone from its own data, with the base and the shared subset of a run, and write it."""
    files.check_name(name)
    if dtype not in experts.DTYPES:
        raise RedxError(f"An expert cannot be kept as {dtype!r}; choose one of {', '.join(experts.DTYPES)}.")
    if (out / "expert.json").exists():
        raise RedxError(f"There is an expert in {out} already; choose another folder with --out.")
    config, seed = choose_seed(run, seed)
    place = run / f"seed-{seed}"
    facts = persistence.read_info(place)
    base = Base.of(files.read_tensors(place / "base.safetensors"), encoder.build_encoder(config))
    own = features.embed_split(config, base, read_own_data(config, facts, base, data, text, label))
    if len(own) < LEAST:
        raise RedxError(f"{data} has {len(own)} examples; an expert needs at least {LEAST}.")
    shared = features.embed_shared(config, base, datasets.read_shared(place), seed)
    rows = torch.randperm(len(own), generator=generator(seed, "own data", name))
    held = max(2, round(HELD * len(own)))
    lesson = shared.lesson(name, own.only(rows[held:]), own.only(rows[:held]), facts.domains)
    mark = fingerprint.fingerprint_base(base, config, facts.classes, facts.shape)
    (made,) = experts.train_experts(config, [lesson], base, seed, facts.unit, facts.classes, mark, dtype)
    made.save(out)
    return made


def read_own_data(
    config: RunConfig, facts: ModelInfo, base: Base, file: Path, text: str | None, label: str | None
) -> Split:
    """A user's own examples of one domain, as the base reads them."""
    if not facts.classes:
        raise RedxError(f"The experts of '{config.task}' give numbers, not labels, and cannot be trained from a file.")
    found = labelled.read_labelled(
        file, facts.classes, None if isinstance(base.encoder, TextEncoder) else facts.shape, text, label
    )
    if isinstance(base.encoder, TextEncoder):
        base.encoder.prepare([found.inputs])
    return found


def retrain_router(
    run: Path,
    more: Mapping[str, Path],
    text: str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Train the router of a run for the experts it has now; data that the run does not have come from files."""
    config, seed = choose_seed(run, seed)
    if config.router.shape == "keys":
        raise RedxError(f"{run} routes by the experts' own scores (keys): there is no router to train.")
    place = run / f"seed-{seed}"
    with lock_run(run, config):
        model = load_seed(place, config)
        data = get_task(config.task).load(config, seed)
        if strange := sorted(set(more) - set(model.domains)):
            raise RedxError(f"There is no expert {strange[0]!r}; choose from {', '.join(model.domains)}.")
        if lacking := [name for name in model.domains if name not in data.domains and name not in more]:
            raise RedxError(
                f"{run} has no data of {lacking[0]!r} to train a router with; "
                f"give it with --domain {lacking[0]} --data FILE."
            )
        choose, _ = datasets.split_validation(data, config.ownership.calibration, seed)
        raw = {"train": data.train, "check": data.validation.only(choose)}
        splits = {
            part: _rows_of_experts(model, features.embed_split(config, model.base, split))
            for part, split in raw.items()
        }
        for name, file in more.items():
            found = features.embed_split(
                config, model.base, read_own_data(config, model.facts, model.base, file, text, label)
            )
            index = torch.full((len(found),), model.domains.index(name))
            held = max(1, round(HELD * len(found)))
            for part, rows in (("check", slice(0, held)), ("train", slice(held, None))):
                some = Split(found.inputs[rows], found.labels[rows], index[rows])
                splits[part] = datasets.concatenate([splits[part], some])
        tensors = train_router(config, model.domains, splits["train"], splits["check"], seed)
        files.write_tensors(place / "router.safetensors", tensors)
        facts = dataclasses.replace(model.facts, routed=model.domains)
        files.write_json(place / "model.json", dataclasses.asdict(facts))
        rewrite_parts(place, config, data)
    return {"experts": list(model.domains), "examples": len(splits["train"])}


def _rows_of_experts(model: Model, split: Split) -> Split:
    """The examples whose domain has an expert, with domains counted as the experts are."""
    places = model.places(split.domains)
    rows = (places < len(model.experts)).nonzero()[:, 0]
    return Split(split.inputs[rows], split.labels[rows], places[rows])
