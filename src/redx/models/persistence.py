"""A model as a folder, RUN/seed-N: save and load.

RUN/config.json  summary.json  README.md
RUN/seed-N/model.json  base.safetensors  router.safetensors  pooled.safetensors
RUN/seed-N/experts/NAME/{expert.safetensors, expert.json}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.files import read_json, read_tensors, without_prefix, write_bytes, write_json, write_tensors
from redx.models.banks import Bank, average_bank, build_bank, fill_bank
from redx.models.base import Base
from redx.models.card import model_card
from redx.models.composed import Model, ModelInfo
from redx.models.encoder import build_encoder
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.models.library import ExpertLibrary, order_domains
from redx.models.router import NetworkRouter, TrainedRouter

JOINT = BankId("residual", "integrated")  # the plain residual experts after joint training
COPIED = ("pooled", "shared", "integration", "decomposer")  # files that are saved as they are


def load_model(
    folder: Path,
    config: RunConfig,
    read: Callable[[Sequence[Any] | Tensor], Tensor],
    decomposer: Callable[[], Any] | None = None,
) -> Model:
    """Return the model of one seed; experts are read from disk when they are first asked.

    Parameters
    ----------
    folder
        Folder of the seed, RUN/seed-N.
    config
        Settings of the run.
    read
        Turns a user's inputs into the tensor that the encoder reads.
    decomposer
        Loads the decomposer, where the run has one.
    """
    info = read_info(folder)
    base = read_base(folder, config)
    library = read_library(folder, config, base, info)
    fixed, joint_routers = _read_fixed_banks(folder, config, base, library)
    summary = folder.parent / "summary.json"
    return Model(
        info=info,
        config=config,
        read=read,
        base=base,
        experts=library,
        router=read_router(folder, config, base, info) if config.router.is_trained else None,
        fixed=fixed,
        joint_routers=joint_routers,
        decomposer=decomposer,
        figures=read_json(summary) if summary.exists() else {},
        home=folder,
    )


def save_model(model: Model, folder: Path) -> None:
    """Write a model to an empty folder that `redx.load` reads, with a model card."""
    if folder.exists() and any(folder.iterdir()):
        raise RedxError(f"{folder} is not empty; choose another folder.")
    joint = model.is_complete and model.config.integrate
    config = model.config.model_copy(update={"seeds": model.config.seeds[:1], "integrate": joint})
    seed = folder / f"seed-{config.seeds[0]}"
    write_tensors(seed / "base.safetensors", model.base.tensors())
    for expert in model.experts:
        expert.save(seed / "experts" / expert.name)
    if model.router is not None:
        write_tensors(seed / "router.safetensors", model.router.network.state_dict())
    for name in COPIED:
        if model.home is not None and (file := model.home / f"{name}.safetensors").exists():
            write_bytes(seed / file.name, file.read_bytes())
    write_json(seed / "model.json", asdict(model.info))
    if model.figures:
        write_json(folder / "summary.json", model.figures)
    card = model_card(config, model.classes, [expert.info for expert in model.experts], model.figures)
    write_bytes(folder / "README.md", card.encode())
    write_json(folder / "config.json", config.model_dump(mode="json"))


def read_info(folder: Path) -> ModelInfo:
    """Return the content of a seed's `model.json`."""
    info = read_json(folder / "model.json")
    try:
        unit = float(info.pop("unit"))
        lists = {"routed": info["domains"], **info}
        return ModelInfo(unit=unit, **{name: tuple(value) for name, value in lists.items()})
    except (TypeError, KeyError, AttributeError) as error:
        raise RedxError(f"{folder / 'model.json'} does not describe a model; repeat the run that made it.") from error


def read_base(folder: Path, config: RunConfig) -> Base:
    """Return the frozen base of a seed."""
    return Base.from_tensors(read_tensors(folder / "base.safetensors"), build_encoder(config))


def read_domain_names(folder: Path) -> tuple[str, ...]:
    """Return the domains of a seed as its parts count them."""
    return order_domains(list(_expert_folders(folder)), read_info(folder).domains)


def read_library(folder: Path, config: RunConfig, base: Base, info: ModelInfo) -> ExpertLibrary:
    """Return the experts of a seed, by the names of their folders."""
    experts = {name: Expert.open(path) for name, path in _expert_folders(folder).items()}
    if not experts:
        raise RedxError(f"There are no experts in {folder / 'experts'}; finish the run with `redx run` first.")

    def fingerprint() -> dict[str, Any]:
        return fingerprint_base(base, config, info.classes, info.shape)

    return ExpertLibrary(experts, base, config.of_form("standalone", "residual"), config.ownership, fingerprint)


def read_router(folder: Path, config: RunConfig, base: Base, info: ModelInfo) -> TrainedRouter:
    """Return the trained router of a seed."""
    network = NetworkRouter(base.width, len(info.routed), config.router.shape, config.router.hidden)
    try:
        network.load_state_dict(read_tensors(folder / "router.safetensors"))
    except RuntimeError as error:
        raise RedxError(
            f"{folder / 'router.safetensors'} does not fit this run; delete it and repeat the run."
        ) from error
    return TrainedRouter(network, info.routed)


def _expert_folders(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in (folder / "experts").glob("*/expert.json")}


def _read_fixed_banks(
    folder: Path, config: RunConfig, base: Base, library: ExpertLibrary
) -> tuple[dict[BankId, Bank], dict[BankId, TrainedRouter]]:
    """Return pooled, averaged and jointly trained banks, and the routers that were trained with a bank."""
    pooled = read_tensors(folder / "pooled.safetensors") if config.of_form("pooled") else {}
    banks = fixed_banks(config, base, library, pooled, average=config.average)
    if not config.integrate or not (folder / "integration.safetensors").exists():
        return banks, {}
    tensors, info = read_tensors(folder / "integration.safetensors"), read_info(folder)
    experts = [without_prefix(tensors, name) for name in sorted(info.domains, key=library.names.index)]
    banks[JOINT] = build_bank(config.banks[BankId("residual", "plain")], len(experts), base)
    fill_bank(banks[JOINT], experts)
    router = copy.deepcopy(read_router(folder, config, base, info))
    router.network.load_state_dict(without_prefix(tensors, "router"))
    return banks, {JOINT: router}


def fixed_banks(
    config: RunConfig, base: Base, library: ExpertLibrary, pooled: dict[str, Tensor], average: bool
) -> dict[BankId, Bank]:
    """Return the pooled heads, whose tensors are given by `BANK.tensor`, and if asked the averaged heads."""
    banks: dict[BankId, Bank] = {}
    for bank_id, settings in config.of_form("pooled").items():
        banks[bank_id] = build_bank(settings, 1, base)
        fill_bank(banks[bank_id], [without_prefix(pooled, str(settings.of or bank_id))])
    for bank_id, settings in config.of_form("standalone").items() if average else ():
        averaged = BankId("averaged", bank_id.name)
        banks[averaged] = build_bank(settings, 1, base)
        fill_bank(banks[averaged], average_bank(library.stacked_bank(bank_id)))
    return banks
