"""A model as a folder: save and load.

FOLDER/config.json  model.json  base.safetensors  router.safetensors  pooled.safetensors  README.md  summary.json
FOLDER/experts/NAME/{expert.safetensors, expert.json, statistics.safetensors}
FOLDER/head.safetensors  head.json  (the base that the sum of the experts' statistics gives, where they bring some)
FOLDER/risk.json  thresholds.safetensors  shared.safetensors  calibration.safetensors

The folder of a run's seed, RUN/seed-N, holds the same files, and shared-only/NAME/: experts that were trained on the
shared examples alone, for comparison. The settings of a run are in RUN/config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor, nn

from redx.composition.summary import read_summary
from redx.config import SHARED_ONLY, BankId, ModelConfig
from redx.data.inputs import READERS
from redx.errors import RedxError
from redx.io.files import without_prefix, write_bytes, write_json, write_tensors
from redx.io.manifest import MANIFEST, format_manifest, is_expected, list_folder, read_manifest, require_manifest
from redx.io.reading import exists, guarded, is_file, is_folder, read_bytes, read_json
from redx.io.safetensors_files import read_tensors
from redx.model.card import model_card
from redx.model.model import Backbone, Model, ModelExtension, ModelInfo, as_given, is_own
from redx.models.backbones.base import Encoder
from redx.models.banks import Bank, average_bank, load_bank
from redx.models.base import Base
from redx.models.calibration import read_calibration, read_compared, write_calibration
from redx.models.description import ModelFile
from redx.models.encoder import FeatureTrunk, ModuleEncoder, build_encoder
from redx.models.expert import Expert
from redx.models.fingerprint import fingerprint_base
from redx.models.fitting import fits
from redx.models.library import ExpertLibrary, build_library, order_domains
from redx.models.ridge_head import DESCRIPTION, read_head
from redx.models.ridge_head import FILE as HEAD
from redx.models.router import KEYS, TRAINED, TrainedRouter, build_router
from redx.training.datasets import read_shared

JOINT = BankId("residual", "integrated")  # the plain residual experts after joint training
COPIED = ("pooled", "integration")  # files that are saved as they are
FORMAT = 2  # of the folder of a saved model


class SavedConfig(ModelConfig):
    """The content of the config.json of a saved model."""

    format: Literal[2]


def load_model(
    folder: Path,
    config: ModelConfig,
    read: Callable[[Any], Tensor],
    extension: ModelExtension | None = None,
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
    extension
        What the task puts before the model, where it does.
    """
    with guarded(folder, "holds no model that can be put together", "repeat the run"):
        return _load_model(folder, config, read, extension, build_encoder(config))


def _load_model(
    folder: Path,
    config: ModelConfig,
    read: Callable[[Any], Tensor],
    extension: ModelExtension | None,
    encoder: Encoder,
    kind: type[Model] = Model,
    may_be_empty: bool = False,
) -> Model:
    info = read_info(folder)
    base = read_base(folder, encoder)
    if base.outputs != (len(info.classes) or 1):
        raise RedxError(f"{folder / 'model.json'} does not fit the base (other classes); repeat the run that made it.")
    library = read_library(folder, config, base, info, may_be_empty)
    fixed, joint_routers = _read_fixed_banks(folder, config, base, library)
    shared_only = read_shared_only(folder, config, base, info)
    summaries = (folder / "summary.json", folder.parent / "summary.json")
    summary = next(filter(exists, summaries), None)
    return kind.assemble(
        info=info,
        config=config,
        read=read,
        base=base,
        experts=library,
        router=read_router(folder, config, base, info) if config.router.is_trained else None,
        fixed=fixed,
        joint_routers=joint_routers,
        extension=extension,
        figures=read_summary(summary) if summary else {},
        home=folder,
        control=read_calibration(folder, list(library)) if config.controlled_bank else None,
        compared=read_compared(folder, list(library)) if config.controlled_bank else None,
        shared_only=shared_only,
    )


def save_model(model: Model, folder: Path, calibration: bool = True, shared: bool = True) -> None:
    """Write a model to an empty folder, with a model card.

    Parameters
    ----------
    model
        The model.
    folder
        The folder.
    calibration, shared
        Whether the features of the calibration examples, and of the shared ones, are written too.
    """
    if exists(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise RedxError(f"{folder} is not empty; choose another folder.")
    write_tensors(folder / "base.safetensors", model.base.tensors())
    for expert in model.experts:
        expert.save(folder / "experts" / expert.name)
    if (head := model.experts.head) is not None:
        head.save(folder / HEAD, folder / DESCRIPTION)
    if model.router is not None:
        write_tensors(folder / "router.safetensors", model.router.network.state_dict())
    extra = (model.extension.name,) if model.extension else ()
    for name in (*COPIED, *extra) if model.is_complete else ("pooled",):
        if model.home is not None and is_file(file := model.home / f"{name}.safetensors"):
            write_bytes(folder / file.name, read_bytes(file))
    if model.config.controlled_bank and (model.control or model.calibration_set):
        controls = model.current_control(), model.compared_controls()
        write_calibration(folder / "risk.json", folder / "thresholds.safetensors", *controls)
    examples = {"shared": model.anchor_data if shared else None}
    examples |= dict.fromkeys(("calibration", "choices"))
    if calibration:
        examples |= {"calibration": model.calibration_set, "choices": model.choices}
    for name, read in examples.items():
        if read is not None:
            write_tensors(folder / f"{name}.safetensors", vars(read()))
    write_json(folder / "model.json", asdict(model.info))
    if model.figures:
        write_json(folder / "summary.json", model.figures)
    card = model_card(model.config, model.classes, [expert.info for expert in model.experts], model.figures)
    write_bytes(folder / "README.md", card.encode())
    settings = ModelConfig.model_validate({name: getattr(model.config, name) for name in ModelConfig.model_fields})
    write_json(folder / "config.json", {"format": FORMAT, **settings.model_dump(mode="json")})
    write_bytes(folder / MANIFEST, format_manifest(list_folder(folder)))


def load_saved(kind: type[Model], folder: Path, backbone: Backbone = None) -> Model:
    """Return the model that `save_model` wrote.

    Parameters
    ----------
    kind
        The class of the model.
    folder
        The folder.
    backbone
        The user's own backbone, where it was made with one.
    """
    if not exists(folder / "model.json") or not exists(folder / "config.json"):
        raise RedxError(f"{folder} holds no model that save_pretrained wrote; give another folder.")
    require_manifest(folder, "model.json")
    advice = "save the model anew with save_pretrained"
    saved: SavedConfig = read_json(
        folder / "config.json", SavedConfig, misfit="does not hold the settings of a model", advice=advice
    )
    config = ModelConfig.model_validate({name: getattr(saved, name) for name in ModelConfig.model_fields})
    info = read_info(folder)
    own = is_own(backbone)
    if not info.reads and not own:
        raise RedxError(f"{folder} was made with a backbone of its user's own; give it as `backbone`.")
    if info.reads and own:
        raise RedxError(f"{folder} was made without a backbone of its user's own; leave out `backbone`.")
    if info.reads and info.reads not in READERS:
        raise RedxError(f"{folder} reads inputs of the kind {info.reads!r}, which no package here brings; install it.")
    if isinstance(backbone, str):
        config = config.model_copy(update={"backbone": backbone})
    encoder = ModuleEncoder(cast(Any, backbone), FeatureTrunk(config.base.trunk)) if own else build_encoder(config)
    if isinstance(backbone, nn.Module) and info.backbone and encoder.mark != info.backbone:
        raise RedxError(
            f"{folder} was made with another backbone (its architecture or weights differ); give the one that it was "
            "made with, with the same weights."
        )
    read = READERS[info.reads] if info.reads else as_given
    with guarded(folder, "holds no model that can be put together", advice):
        model = _load_model(folder, config, read, None, encoder, kind, may_be_empty=True)
    model.set_backbone(backbone)
    model.routing = KEYS if model.router is None or model.router.missing(model.experts.names) else TRAINED
    if is_expected(folder / "shared.safetensors"):
        model.use_examples(shared=partial(as_given, read_shared(folder / "shared.safetensors")))
        model.follow_defaults()
    if is_expected(folder / "calibration.safetensors"):
        model.calibration_set = partial(as_given, read_shared(folder / "calibration.safetensors"))
    if is_expected(folder / "choices.safetensors"):
        model.use_examples(choices=partial(as_given, read_shared(folder / "choices.safetensors")))
    return model


def is_saved_model(folder: Path) -> bool:
    """Return whether a folder holds a model that `save_model` wrote, and not a run."""
    return exists(folder / "model.json") and exists(folder / "config.json")


def read_info(folder: Path) -> ModelInfo:
    """Return the content of a seed's `model.json`."""
    path = folder / "model.json"
    info: ModelFile = read_json(
        path, ModelFile, misfit="does not describe a model", advice="repeat the run that made it"
    )
    routed = info.domains if info.routed is None else info.routed
    return ModelInfo(info.domains, info.classes, info.belongs, info.unit, info.shape, routed, info.reads, info.backbone)


def read_base(folder: Path, encoder: Encoder) -> Base:
    """Return the frozen base of a model, with an untrained encoder to fill."""
    path = folder / "base.safetensors"
    tensors = read_tensors(path)
    try:
        return Base.from_tensors(tensors, encoder)
    except RedxError as error:
        raise RedxError(str(error).replace("The file of the base", str(path))) from error


def read_domain_names(folder: Path) -> tuple[str, ...]:
    """Return the domains of a seed as its parts count them."""
    return order_domains(list(_expert_folders(folder)), read_info(folder).domains)


def read_library(
    folder: Path, config: ModelConfig, base: Base, info: ModelInfo, may_be_empty: bool = False
) -> ExpertLibrary:
    """Return the experts of a seed, by the names of their folders."""
    experts = {name: Expert.open(path) for name, path in _expert_folders(folder).items()}
    if not experts and not may_be_empty:
        raise RedxError(f"There are no experts in {folder / 'experts'}; finish the run with `redx run` first.")

    def fingerprint() -> dict[str, Any]:
        return fingerprint_base(base, config, info.classes, info.shape)

    head = read_head(folder, base) if config.statistics.use and is_expected(folder / HEAD) else None
    return build_library(experts, base, config, fingerprint, info.classes, head)


def read_shared_only(folder: Path, config: ModelConfig, base: Base, info: ModelInfo) -> ExpertLibrary | None:
    """Return the experts of a seed that were trained on the shared examples alone; None where it has none."""
    experts = {name: Expert.open(path) for name, path in _expert_folders(folder, SHARED_ONLY.name).items()}
    settings = config.for_shared_only()
    if not experts or settings is None:
        return None

    def fingerprint() -> dict[str, Any]:
        return fingerprint_base(base, config, info.classes, info.shape)

    return build_library(experts, base, settings, fingerprint, info.classes)


def read_router(folder: Path, config: ModelConfig, base: Base, info: ModelInfo) -> TrainedRouter:
    """Return the trained router of a seed."""
    path = folder / "router.safetensors"
    return TrainedRouter(_load_router(path, read_tensors(path), config, base, info), info.routed)


def _load_router(path: Path, tensors: dict[str, Tensor], config: ModelConfig, base: Base, info: ModelInfo) -> nn.Module:
    """Return the router with these tensors; it takes no memory before they are known to fit."""

    def build() -> nn.Module:
        return build_router(base.width, len(info.routed), config.router)

    if not fits(build, tensors):
        raise RedxError(f"{path} does not fit this model; train the router anew with `redx router train`.")
    network = build()
    network.load_state_dict(tensors)
    return network


def _expert_folders(folder: Path, among: str = "experts") -> dict[str, Path]:
    found = {path.parent.name: path.parent for path in (folder / among).glob("*/expert.json")}
    for name in read_manifest(folder) or {}:
        if name.startswith(f"{among}/") and not exists(folder / name):
            raise RedxError(
                f"{folder / name} is missing, and {MANIFEST} lists it; restore it from a copy, or make the folder anew "
                "elsewhere."
            )
    return found


def _read_fixed_banks(
    folder: Path, config: ModelConfig, base: Base, library: ExpertLibrary
) -> tuple[dict[BankId, Bank], dict[BankId, TrainedRouter]]:
    """Return pooled, averaged and jointly trained banks, and the routers that were trained with a bank."""
    pooled = read_tensors(folder / "pooled.safetensors") if config.of_form("pooled") else {}
    path, info = folder / "integration.safetensors", read_info(folder)
    if config.average:  # the parameters of the run's own experts
        library = library.subset([name for name in info.domains if name in library])
    banks = fixed_banks(config, base, library, pooled, average=config.average)
    if not is_expected(path) or not set(info.domains) <= set(library.names):
        return banks, {}
    tensors = read_tensors(path)
    experts = [without_prefix(tensors, name) for name in sorted(info.domains, key=library.names.index)]
    banks[JOINT] = load_bank(config.banks[BankId("residual", "plain")], experts, base)
    network = _load_router(path, without_prefix(tensors, "router"), config, base, info)
    return banks, {JOINT: TrainedRouter(network, info.routed)}


def fixed_banks(
    config: ModelConfig, base: Base, library: ExpertLibrary, pooled: dict[str, Tensor], average: bool
) -> dict[BankId, Bank]:
    """Return the pooled heads, whose tensors are given by `BANK.tensor`, and if asked the averaged heads."""
    banks: dict[BankId, Bank] = {}
    for bank_id, settings in config.of_form("pooled").items():
        banks[bank_id] = load_bank(settings, [without_prefix(pooled, str(settings.experts_of or bank_id))], base)
    # no heads, or heads of different sizes, have no mean
    average = average and bool(len(library)) and not any(expert.new_classes for expert in library)
    for bank_id, settings in config.of_form("standalone").items() if average else ():
        averaged = BankId("averaged", bank_id.name)
        banks[averaged] = load_bank(settings, average_bank(library.stacked_bank(bank_id)), base)
    return banks
