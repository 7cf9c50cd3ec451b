"""The kit that the owner of a domain gets to train an expert alone: base, settings and shared features in one archive.

kit.zip: kit.json (settings, fingerprint of the base)  model.json (classes, domains)  base.safetensors
         shared.safetensors (features, labels, domains)  manifest.json (hashes of the others)

It holds no text, and no calibration, choice or test example. A kit is read like every file from a stranger: only these
five names, stored and not packed, each within its limit, before anything is read from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import stat
import zipfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal

from safetensors.torch import save

from redx.config import ModelConfig, RunConfig, StrictConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.files import write_bytes
from redx.io.manifest import MANIFEST, Entry, format_manifest, read_manifest
from redx.io.reading import JSON_BYTES, check_path, exists, guarded, is_folder, open_file, read_bytes, read_json
from redx.model.model import ModelInfo
from redx.model.persistence import read_base, read_info
from redx.models.banks import build_bank
from redx.models.base import Base
from redx.models.description import Fingerprint
from redx.models.encoder import build_encoder
from redx.models.feature_map import FeatureMap
from redx.models.fingerprint import base_differences, fingerprint_base
from redx.models.fitting import expected_shapes
from redx.runs.folder import choose_seed
from redx.training.datasets import read_shared

LIMITS = {"kit.json": JSON_BYTES, "model.json": JSON_BYTES, "base.safetensors": 2**34, "shared.safetensors": 2**34}
LIMITS |= {MANIFEST: JSON_BYTES}
ADVICE = "ask for the kit anew"
DATE = (1980, 1, 1, 0, 0, 0)  # of every entry: the same run gives the same bytes
CHUNK = 2**20  # bytes that are copied at once
MAX_VALUES = 2**25  # of the banks of one expert, whose training takes several times their memory


class KitFile(StrictConfig):
    """The content of kit.json."""

    format: Literal[1]
    task: str
    preset: str
    seed: int
    config: dict[str, Any]
    fingerprint: dict[str, Any]


@dataclass(frozen=True)
class Kit:
    """What an expert is trained with, apart from its own data.

    Attributes
    ----------
    config, info
        The settings of the model, and what it knows of its classes and domains.
    base, anchors
        The frozen base, and the shared examples as features.
    seed
        The seed of the run.
    task, preset
        Where they come from, for expert.json.
    fingerprint
        The fingerprint of the base as the run computed it; None where the run itself is read.
    """

    config: ModelConfig
    info: ModelInfo
    base: Base
    anchors: Split
    seed: int
    task: str
    preset: str
    fingerprint: dict[str, Any] | None = None

    def check_base(self) -> dict[str, Any]:
        """Return the fingerprint of the base on this machine, or refuse one that is not the run's."""
        ours = fingerprint_base(self.base, self.config, self.info.classes, self.info.shape)
        if self.fingerprint is not None and (differences := base_differences(self.fingerprint, ours)):
            raise RedxError(
                f"The base computes something else here than in the run that the kit comes from: "
                f"{', '.join(differences)} differ; give the same backbone with --backbone."
            )
        return ours


def kit_of_run(run: Path, seed: int | None = None) -> Kit:
    """Return what an expert is trained with, read from a run folder; no other file of it is needed.

    Parameters
    ----------
    run
        The run folder; only config.json and the seed's model.json, base.safetensors and shared.safetensors are read.
    seed
        Which seed of the run; the first by default.
    """
    config, seed = choose_seed(run, seed)
    folder = run / f"seed-{seed}"
    base, anchors = read_base(folder, build_encoder(config)), read_shared(folder / "shared.safetensors")
    return Kit(_settings(config), read_info(folder), base, anchors, seed, config.task, config.preset)


def write_kit(run: Path, out: Path, seed: int | None = None) -> dict[str, Any]:
    """Write the kit of a run, which its integrator sends to the owners of domains; the same run gives the same bytes.

    Parameters
    ----------
    run
        The run folder.
    out
        The archive to write; there must be none.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    dict
        What is inside: `files` with their sizes, `examples` (shared, as features), `features` (of each), `classes`,
        `domains`, `fingerprint` (hash of the base's weights), `statistics` (the `features` of the map that owners sum,
        and the `bytes` of their file at most; None where the run uses none), and `reveals`: sentences that say what an
        owner learns.
    """
    check_path(out)
    if exists(out):
        raise RedxError(f"There is a file {out} already; choose another name with --out.")
    config, seed = choose_seed(run, seed)
    kit, folder = kit_of_run(run, seed), run / f"seed-{seed}"
    if not kit.info.classes:
        raise RedxError(f"The experts of '{kit.task}' give numbers, not labels, and cannot be trained from a file.")
    backbone = Path(kit.config.backbone).name if is_folder(kit.config.backbone) else kit.config.backbone
    settings = kit.config.model_copy(update={"backbone": backbone, "device": "cpu"})
    fingerprint = kit.check_base()
    about = KitFile(
        format=1,
        task=config.task,
        preset=config.preset,
        seed=seed,
        config=settings.model_dump(mode="json"),
        fingerprint=fingerprint,
    )
    info = asdict(kit.info) | {"routed": ()}  # the owner needs no router
    files = {
        "kit.json": (about.model_dump_json(indent=1) + "\n").encode(),
        "model.json": (json.dumps(info, indent=1) + "\n").encode(),
        "base.safetensors": read_bytes(folder / "base.safetensors", LIMITS["base.safetensors"]),
        "shared.safetensors": save({name: value.contiguous() for name, value in vars(kit.anchors).items()}),
    }
    entries = {name: Entry(hashlib.sha256(content).hexdigest(), len(content)) for name, content in files.items()}
    files[MANIFEST] = format_manifest(entries)
    write_bytes(out, _pack(files))
    statistics = None
    if kit.config.statistics.use:
        size = FeatureMap.create(kit.config.statistics, kit.base).outputs
        numbers = size * (size + 1) // 2 + size * len(kit.info.classes)  # of an owner who has all classes
        statistics = {"features": size, "bytes": 4 * numbers}
    return {
        "kit": str(out),
        "files": {name: len(content) for name, content in files.items()},
        "examples": len(kit.anchors),
        "features": kit.anchors.inputs.shape[1],
        "classes": len(kit.info.classes),
        "domains": list(kit.info.domains),
        "fingerprint": fingerprint["base weights"],
        "statistics": statistics,
        "reveals": _what_it_reveals(kit),
    }


def read_kit(path: Path, backbone: str | None = None) -> Kit:
    """Return the kit in an archive.

    Parameters
    ----------
    path
        The archive that `write_kit` wrote.
    backbone
        Name or folder of the backbone on this machine, where it has another one than in the run.

    Raises
    ------
    RedxError
        If the archive is damaged, holds anything else than a kit, or needs a backbone that is not here.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with open_file(path, sum(LIMITS.values()), "give a kit of `redx experts kit`", ADVICE) as (file, size):
            _unpack(path, file, size, folder)
        try:
            return _read_folder(path, folder, backbone)
        except RedxError as error:
            if f"{folder}/" not in str(error):
                raise
            problem = str(error).replace(f"{folder}/", f"{path}: ").partition("; ")[0]
            raise RedxError(f"{problem}; {ADVICE}.") from error  # its reader has no run to repeat


def _settings(config: RunConfig) -> ModelConfig:
    """Return the settings of the model alone, without where its data lay."""
    return ModelConfig.model_validate({name: getattr(config, name) for name in ModelConfig.model_fields})


def _read_folder(path: Path, folder: Path, backbone: str | None) -> Kit:
    read_manifest(folder)  # refuses a damaged one; every file is compared with it when it is read
    about: KitFile = read_json(folder / "kit.json", KitFile, misfit="does not describe a kit", advice=ADVICE)
    with guarded(path, "has unusable settings", ADVICE):
        config = ModelConfig.model_validate(about.config)
        Fingerprint.model_validate(about.fingerprint)
    config = config.model_copy(update={"backbone": backbone}) if backbone else config
    info = read_info(folder)
    try:
        encoder = build_encoder(config)
    except RedxError as error:
        if backbone:
            raise
        raise RedxError(
            f"{path} needs the backbone {config.backbone!r:.100}, which is not here ({str(error).rstrip('.')}); "
            "give its folder with --backbone."
        ) from error
    base, anchors = read_base(folder, encoder), read_shared(folder / "shared.safetensors")
    if base.outputs != len(info.classes):
        raise RedxError(f"{path} has a base of other classes than those that it names; {ADVICE}.")
    with guarded(path, "has unusable settings", ADVICE):
        banks = [bank for bank in config.of_form("standalone", "residual").values() if bank.experts_of is None]
        shapes = [shape for bank in banks for shape in expected_shapes(partial(build_bank, bank, 1, base)).values()]
    if (values := sum(map(math.prod, shapes))) > MAX_VALUES:
        raise RedxError(f"{path} asks for an expert of {values:,} values, more than {MAX_VALUES:,}; {ADVICE}.")
    if anchors.inputs.ndim != 2 or anchors.inputs.shape[1] != base.width:
        raise RedxError(f"{path} has shared features that the base does not read; {ADVICE}.")
    known = bool(((anchors.labels >= 0) & (anchors.labels < len(info.classes))).all())
    if not known or not bool(((anchors.domains >= -1) & (anchors.domains < len(info.domains))).all()):
        raise RedxError(f"{path} has shared examples of classes or domains that it does not name; {ADVICE}.")
    return Kit(config, info, base, anchors, about.seed, about.task, about.preset, about.fingerprint)


def _pack(files: dict[str, bytes]) -> bytes:
    """Return an archive of these files, stored as they are, with the same bytes for the same content."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, files[name])
    return target.getvalue()


def _unpack(path: Path, file: BinaryIO, size: int, folder: Path) -> None:
    """Copy the entries of an archive into a folder of our own, after checking all of them."""
    with guarded(path, "is no archive", ADVICE):
        archive = zipfile.ZipFile(file)
    with guarded(path, "is damaged", ADVICE):
        entries = archive.infolist()
        if sorted(entry.filename for entry in entries) != sorted(LIMITS):
            raise RedxError(f"{path} holds other files than a kit; {ADVICE}.")
        for entry in entries:
            kind = stat.S_IFMT(entry.external_attr >> 16)
            packed = entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size
            if packed or entry.flag_bits & 1 or kind not in (0, stat.S_IFREG):
                raise RedxError(f"{path} has a link, or a packed or locked file in it ({entry.filename}); {ADVICE}.")
            if entry.file_size > min(LIMITS[entry.filename], size):
                raise RedxError(f"{path} names a size of {entry.filename} that it cannot have; {ADVICE}.")
        for entry in entries:
            with archive.open(entry) as source, open(folder / entry.filename, "wb") as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)


def _what_it_reveals(kit: Kit) -> list[str]:
    texts = (
        "texts, which somebody with the backbone can partly guess from them"
        if kit.base.encoder.reads_text
        else ("inputs, which can be rebuilt from them in part or in whole")
    )
    return [
        f"features of {len(kit.anchors)} shared training examples with their labels and domains: no text, but a "
        f"summary of their {texts}",
        "the names of all classes and domains",
        "the base, which was trained on the shared examples",
        "no example for calibration, choices or test, and no other training example",
    ]
