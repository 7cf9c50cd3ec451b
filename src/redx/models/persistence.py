"""A model as a folder, RUN/seed-N: save and load.

RUN/config.json  summary.json  README.md
RUN/seed-N/model.json  base.safetensors  router.safetensors  pooled.safetensors
RUN/seed-N/experts/NAME/{expert.safetensors, expert.json}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.composition.summary import read_summary
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.files import without_prefix, write_bytes, write_json, write_tensors
from redx.io.reading import exists, guarded, is_file, is_folder, read_bytes, read_json
from redx.io.safetensors_files import read_tensors
from redx.models.banks import Bank, average_bank, load_bank
from redx.models.base import Base
from redx.models.calibration import read_calibration, write_calibration
from redx.models.card import model_card
from redx.models.composed import Model, ModelInfo
from redx.models.description import ModelFile
from redx.models.encoder import build_encoder
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.models.fitting import fits
from redx.models.library import ExpertLibrary, order_domains
from redx.models.router import NetworkRouter, TrainedRouter

JOINT = BankId("residual", "integrated")  # the plain residual experts after joint training
COPIED = ("pooled", "shared", "integration", "decomposer")  # files that are saved as they are


def load_model(
    folder: Path,
    config: RunConfig,
    read: Callable[[Any], Tensor],
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
    with guarded(folder, "holds no model that can be put together", "repeat the run"):
        return _load_model(folder, config, read, decomposer)


def _load_model(
    folder: Path,
    config: RunConfig,
    read: Callable[[Any], Tensor],
    decomposer: Callable[[], Any] | None,
) -> Model:
    info = read_info(folder)
    base = read_base(folder, config)
    if base.outputs != (len(info.classes) or 1):
        raise RedxError(f"{folder / 'model.json'} does not fit the base (other classes); repeat the run that made it.")
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
        figures=read_summary(summary) if exists(summary) else {},
        home=folder,
        calibration=read_calibration(folder, list(library)) if config.controlled_bank else None,
    )


def save_model(model: Model, folder: Path) -> None:
    """Write a model to an empty folder that `redx.load` reads, with a model card."""
    if exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
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
        if model.home is not None and is_file(file := model.home / f"{name}.safetensors"):
            write_bytes(seed / file.name, read_bytes(file))
    if model.config.controlled_bank:
        write_calibration(seed / "risk.json", seed / "thresholds.safetensors", model.calibrated())
    write_json(seed / "model.json", asdict(model.info))
    if model.figures:
        write_json(folder / "summary.json", model.figures)
    card = model_card(config, model.classes, [expert.info for expert in model.experts], model.figures)
    write_bytes(folder / "README.md", card.encode())
    write_json(folder / "config.json", config.model_dump(mode="json"))


def read_info(folder: Path) -> ModelInfo:
    """Return the content of a seed's `model.json`."""
    path = folder / "model.json"
    info: ModelFile = read_json(
        path, ModelFile, misfit="does not describe a model", advice="repeat the run that made it"
    )
    routed = info.domains if info.routed is None else info.routed
    return ModelInfo(info.domains, info.classes, info.belongs, info.unit, info.shape, routed)


def read_base(folder: Path, config: RunConfig) -> Base:
    """Return the frozen base of a seed."""
    path = folder / "base.safetensors"
    tensors = read_tensors(path)
    encoder = build_encoder(config)
    try:
        return Base.from_tensors(tensors, encoder)
    except RedxError as error:
        raise RedxError(str(error).replace("The file of the base", str(path))) from error


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

    banks = config.of_form("standalone", "residual")
    return ExpertLibrary(experts, base, banks, config.ownership, fingerprint, info.classes)


def read_router(folder: Path, config: RunConfig, base: Base, info: ModelInfo) -> TrainedRouter:
    """Return the trained router of a seed."""
    path = folder / "router.safetensors"
    return TrainedRouter(_load_router(path, read_tensors(path), config, base, info), info.routed)


def _load_router(
    path: Path, tensors: dict[str, Tensor], config: RunConfig, base: Base, info: ModelInfo
) -> NetworkRouter:
    """Return the router with these tensors; it takes no memory before they are known to fit."""

    def build() -> NetworkRouter:
        return NetworkRouter(base.width, len(info.routed), config.router.shape, config.router.hidden)

    if not fits(build, tensors):
        raise RedxError(f"{path} does not fit this run; delete it and repeat the run.")
    network = build()
    network.load_state_dict(tensors)
    return network


def _expert_folders(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in (folder / "experts").glob("*/expert.json")}


def _read_fixed_banks(
    folder: Path, config: RunConfig, base: Base, library: ExpertLibrary
) -> tuple[dict[BankId, Bank], dict[BankId, TrainedRouter]]:
    """Return pooled, averaged and jointly trained banks, and the routers that were trained with a bank."""
    pooled = read_tensors(folder / "pooled.safetensors") if config.of_form("pooled") else {}
    path, info = folder / "integration.safetensors", read_info(folder)
    if config.average:  # the parameters of the run's own experts
        library = library.subset([name for name in info.domains if name in library])
    banks = fixed_banks(config, base, library, pooled, average=config.average)
    if not config.integrate or not is_file(path) or not set(info.domains) <= set(library.names):
        return banks, {}
    tensors = read_tensors(path)
    experts = [without_prefix(tensors, name) for name in sorted(info.domains, key=library.names.index)]
    banks[JOINT] = load_bank(config.banks[BankId("residual", "plain")], experts, base)
    network = _load_router(path, without_prefix(tensors, "router"), config, base, info)
    return banks, {JOINT: TrainedRouter(network, info.routed)}


def fixed_banks(
    config: RunConfig, base: Base, library: ExpertLibrary, pooled: dict[str, Tensor], average: bool
) -> dict[BankId, Bank]:
    """Return the pooled heads, whose tensors are given by `BANK.tensor`, and if asked the averaged heads."""
    banks: dict[BankId, Bank] = {}
    for bank_id, settings in config.of_form("pooled").items():
        banks[bank_id] = load_bank(settings, [without_prefix(pooled, str(settings.of or bank_id))], base)
    # no heads, or heads of different sizes, have no mean
    average = average and bool(len(library)) and not any(expert.new_classes for expert in library)
    for bank_id, settings in config.of_form("standalone").items() if average else ():
        averaged = BankId("averaged", bank_id.name)
        banks[averaged] = load_bank(settings, average_bank(library.stacked_bank(bank_id)), base)
    return banks
