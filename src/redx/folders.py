"""A model as a folder, RUN/seed-N: its files read into a `Model`, and a `Model` written to such files with a card."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from redx import encoders, experts, fingerprint
from redx.arithmetic import decomposers
from redx.base import Base, build
from redx.config import RunConfig
from redx.errors import RedxError
from redx.experts import Bank
from redx.io import files
from redx.lessons import Shared
from redx.library import Expert, Library
from redx.model import Facts, Key, Model
from redx.routers import Router
from redx.tasks import task


def load_seed(folder: Path, config: RunConfig) -> Model:
    """The trained modules of one seed, as a model; experts are read when they are first asked."""
    facts = read_facts(folder)
    base = Base.of(files.read_tensors(folder / "base.safetensors"), encoders.build(config))
    library = read_library(folder, config, base, facts)
    fixed, own_router = _fixed(folder, config, base, library)
    return Model(
        facts=facts,
        config=config,
        read=task(config.task).read,
        base=base,
        experts=library,
        router=None if config.router.shape == "keys" else read_router(folder, config, base, facts),
        fixed=fixed,
        own_router=own_router,
        decomposer=None if config.decomposer == "none" else lambda: _decomposer(folder, config),
        figures=_figures(folder.parent),
        home=folder,
    )


def read_facts(folder: Path) -> Facts:
    found = files.read_json(folder / "model.json")
    try:
        unit = float(found.pop("unit"))
        lists = {"routed": found["domains"], **found}
        return Facts(unit=unit, **{name: tuple(value) for name, value in lists.items()})
    except (TypeError, KeyError, AttributeError) as error:
        raise RedxError(f"{folder / 'model.json'} does not describe a model; repeat the run that made it.") from error


def name_domains(folder: Path) -> tuple[str, ...]:
    """The experts in a folder, then domains of the data that have none: as its parts count them."""
    have = sorted((path.parent.name for path in (folder / "experts").glob("*/expert.json")), key=files.natural_order)
    return (*have, *(name for name in read_facts(folder).domains if name not in have))


def read_library(folder: Path, config: RunConfig, base: Base, facts: Facts) -> Library:
    """The experts in a folder, by the names of their folders."""
    found = {path.parent.name: Expert.at(path.parent) for path in (folder / "experts").glob("*/expert.json")}
    if not found:
        raise RedxError(f"There are no experts in {folder / 'experts'}; finish the run with `redx run` first.")
    banks = config.of_form("standalone", "residual")
    return Library(
        found, base, banks, config.ownership, lambda: fingerprint.of(base, config, facts.classes, facts.shape)
    )


def read_shared(folder: Path) -> Shared:
    """The shared subset that goes with the base."""
    try:
        return Shared.of(files.read_tensors(folder / "shared.safetensors"))
    except TypeError as error:
        raise RedxError(f"{folder / 'shared.safetensors'} is no shared subset; repeat the run.") from error


def read_router(folder: Path, config: RunConfig, base: Base, facts: Facts) -> Router:
    router = Router(base.width, len(facts.routed), config.router.shape, config.router.hidden)
    try:
        router.load_state_dict(files.read_tensors(folder / "router.safetensors"))
    except RuntimeError as error:
        raise RedxError(
            f"{folder / 'router.safetensors'} does not fit this run; delete it and repeat the run."
        ) from error
    return router


def _fixed(folder: Path, config: RunConfig, base: Base, library: Library) -> tuple[dict[Key, Bank], dict[Key, Router]]:
    """The banks that do not go by expert: pooled heads, averaged heads, and what was trained jointly."""
    banks: dict[Key, Bank] = {}
    pooled = files.read_tensors(folder / "pooled.safetensors") if config.of_form("pooled") else {}
    for key, settings in config.of_form("pooled").items():
        bank = banks["pooled", key.split("/")[1]] = build(settings, 1, base)
        experts.join(bank, [files.without_prefix(pooled, settings.of or key)])
    if config.average:
        for key, settings in config.of_form("standalone").items():
            bank = banks["averaged", key.split("/")[1]] = build(settings, 1, base)
            experts.join(bank, experts.average(library.stack(key)))
    if not config.integrate or not (folder / "integration.safetensors").exists():
        return banks, {}
    joint = "residual", "integrated"
    tensors, facts = files.read_tensors(folder / "integration.safetensors"), read_facts(folder)
    alone = [files.without_prefix(tensors, name) for name in sorted(facts.domains, key=library.names.index)]
    banks[joint] = build(config.banks["residual/plain"], len(alone), base)
    experts.join(banks[joint], alone)
    router = copy.deepcopy(read_router(folder, config, base, facts))
    router.load_state_dict(files.without_prefix(tensors, "router"))
    return banks, {joint: router}


def _decomposer(folder: Path, config: RunConfig) -> decomposers.Decomposer:
    tensors = files.read_tensors(folder / "decomposer.safetensors")
    return decomposers.restore(config.decomposer, tensors, config.backbone)


def _figures(run: Path) -> dict[str, Any]:
    return files.read_json(run / "summary.json") if (run / "summary.json").exists() else {}
