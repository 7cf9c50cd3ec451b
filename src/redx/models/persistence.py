"""A model as a folder, RUN/seed-N: its files read into a `Model`, and a `Model` written to such files with a card."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from redx.config import RunConfig
from redx.errors import RedxError
from redx.io import files
from redx.models import fingerprint
from redx.models.banks import Bank, average_bank, build_bank, fill_bank
from redx.models.base import Base
from redx.models.composed import Key, ModelInfo
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.router import NetworkRouter


def read_info(folder: Path) -> ModelInfo:
    found = files.read_json(folder / "model.json")
    try:
        unit = float(found.pop("unit"))
        lists = {"routed": found["domains"], **found}
        return ModelInfo(unit=unit, **{name: tuple(value) for name, value in lists.items()})
    except (TypeError, KeyError, AttributeError) as error:
        raise RedxError(f"{folder / 'model.json'} does not describe a model; repeat the run that made it.") from error


def read_domain_names(folder: Path) -> tuple[str, ...]:
    """The experts in a folder, then domains of the data that have none: as its parts count them."""
    have = sorted((path.parent.name for path in (folder / "experts").glob("*/expert.json")), key=files.natural_order)
    return (*have, *(name for name in read_info(folder).domains if name not in have))


def read_library(folder: Path, config: RunConfig, base: Base, facts: ModelInfo) -> ExpertLibrary:
    """The experts in a folder, by the names of their folders."""
    found = {path.parent.name: Expert.at(path.parent) for path in (folder / "experts").glob("*/expert.json")}
    if not found:
        raise RedxError(f"There are no experts in {folder / 'experts'}; finish the run with `redx run` first.")
    banks = config.of_form("standalone", "residual")
    return ExpertLibrary(
        found,
        base,
        banks,
        config.ownership,
        lambda: fingerprint.fingerprint_base(base, config, facts.classes, facts.shape),
    )


def read_router(folder: Path, config: RunConfig, base: Base, facts: ModelInfo) -> NetworkRouter:
    router = NetworkRouter(base.width, len(facts.routed), config.router.shape, config.router.hidden)
    try:
        router.load_state_dict(files.read_tensors(folder / "router.safetensors"))
    except RuntimeError as error:
        raise RedxError(
            f"{folder / 'router.safetensors'} does not fit this run; delete it and repeat the run."
        ) from error
    return router


def _read_fixed_banks(
    folder: Path, config: RunConfig, base: Base, library: ExpertLibrary
) -> tuple[dict[Key, Bank], dict[Key, NetworkRouter]]:
    """The banks that do not go by expert: pooled heads, averaged heads, and what was trained jointly."""
    banks: dict[Key, Bank] = {}
    pooled = files.read_tensors(folder / "pooled.safetensors") if config.of_form("pooled") else {}
    for key, settings in config.of_form("pooled").items():
        bank = banks["pooled", key.split("/")[1]] = build_bank(settings, 1, base)
        fill_bank(bank, [files.without_prefix(pooled, settings.of or key)])
    if config.average:
        for key, settings in config.of_form("standalone").items():
            bank = banks["averaged", key.split("/")[1]] = build_bank(settings, 1, base)
            fill_bank(bank, average_bank(library.stack(key)))
    if not config.integrate or not (folder / "integration.safetensors").exists():
        return banks, {}
    joint = "residual", "integrated"
    tensors, facts = files.read_tensors(folder / "integration.safetensors"), read_info(folder)
    alone = [files.without_prefix(tensors, name) for name in sorted(facts.domains, key=library.names.index)]
    banks[joint] = build_bank(config.banks["residual/plain"], len(alone), base)
    fill_bank(banks[joint], alone)
    router = copy.deepcopy(read_router(folder, config, base, facts))
    router.load_state_dict(files.without_prefix(tensors, "router"))
    return banks, {joint: router}


def read_figures(run: Path) -> dict[str, Any]:
    return files.read_json(run / "summary.json") if (run / "summary.json").exists() else {}
