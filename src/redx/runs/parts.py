"""The parts of a seed on disk: one file per bank, and each file names the set that it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import Banks
from redx.composition.parts import Losses, Parts
from redx.composition.risk import RiskControl
from redx.config import BankId, StrictConfig
from redx.errors import RedxError
from redx.io.files import without_prefix, write_tensors
from redx.io.manifest import require_manifest
from redx.io.reading import exists, guarded, parse_json
from redx.io.safetensors_files import open_safetensors, read_tensors
from redx.model.persistence import read_domain_names
from redx.models.calibration import read_controls
from redx.runs.integrity import check_modules
from redx.runs.transaction import consistently

MAX_DOMAINS = 2**20  # where nothing says how many there are
KEY = "redx.parts"  # of the metadata of each file


class SetInfo(StrictConfig):
    """What every file of a set says about the set."""

    domains: list[str]
    experts: int
    banks: list[str]
    set: str
    classes: list[str] = []  # empty for a regression, and in files of an older version
    modules: dict[str, str] = {}  # the hashes of the modules that made the parts


@dataclass(frozen=True)
class StoredParts:
    """The parts of all banks on the test split of one seed.

    Attributes
    ----------
    banks
        The parts by bank.
    domains
        Names of the domains as the parts count them: the experts, then domains without an expert.
    classes
        Names of the classes in the order of the logits: the base's, then those that experts bring. Empty for a
        regression, and where an older version wrote the parts.
    """

    banks: Banks
    domains: tuple[str, ...]
    classes: tuple[str, ...] = ()

    @property
    def units(self) -> int:
        """The number of exchangeable units, as `count_units` returns it."""
        return count_units(self.banks)


def count_groups(banks: Banks) -> dict[str, int]:
    """Return how many `groups` of how many `examples` there are; nothing where examples do not come in groups."""
    parts = next(iter(banks.values()))
    return {} if parts.groups is None else {"groups": count_units(banks), "examples": len(parts)}


def count_units(banks: Banks) -> int:
    """Return the number of exchangeable units: groups such as documents, or examples where there are no groups."""
    parts = next(iter(banks.values()))
    return len(parts) if parts.groups is None else len(parts.groups.unique())


def write_parts(
    folder: Path,
    banks: Banks,
    domains: Sequence[str],
    experts: int,
    classes: Sequence[str] = (),
    modules: Mapping[str, str] | None = None,
) -> None:
    """Write the parts of every bank into a folder.

    Parameters
    ----------
    folder
        The folder, which must not hold other parts.
    banks
        The parts by bank.
    domains
        Names of the domains as the parts count them.
    experts
        How many of the domains, the first ones, have an expert.
    classes
        Names of the classes in the order of the logits.
    modules
        The hashes of the modules that made the parts, as `module_hashes` returns them.
    """
    about = {"domains": list(domains), "experts": experts, "banks": sorted(map(_file_name, banks))}
    about |= {"classes": list(classes)} if classes else {}
    about |= {"modules": dict(modules)} if modules else {}
    set_id = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for parts in banks.values():
        for tensor in _to_tensors(parts).values():
            set_id.update(tensor.detach().cpu().contiguous().numpy().data)
    text = json.dumps(about | {"set": set_id.hexdigest()})
    for bank_id, parts in banks.items():
        write_tensors(folder / _file_name(bank_id), _to_tensors(parts), {KEY: text})


def read_parts(folder: Path, seed: int, only: BankId | None = None) -> StoredParts:
    """Return the parts of every bank on the test split of one seed, all from the same state of the run.

    Parameters
    ----------
    folder
        The run folder.
    seed
        Which seed of the run.
    only
        Read this bank alone.

    Raises
    ------
    RedxError
        If there are none, if some are missing, or if they belong to different sets.
    """
    seed_folder = folder / f"seed-{seed}"
    return consistently(folder, seed_folder, lambda: _read_parts(folder, seed_folder, only))


def are_complete(folder: Path, seed: int) -> bool:
    """Return whether the parts of a seed can be read."""
    try:
        read_parts(folder, seed)
    except RedxError:
        return False
    return True


def named_modules(seed_folder: Path) -> dict[str, str]:
    """Return the hashes of the modules that the parts of a seed name; nothing where there are no parts."""
    paths = sorted((seed_folder / "parts").glob("*.safetensors"))
    return _read_about(paths[0]).get("modules", {}) if paths else {}


def _read_parts(run: Path, seed_folder: Path, only: BankId | None) -> StoredParts:
    require_manifest(seed_folder, "stages.json")
    folder = seed_folder / "parts"
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        number = seed_folder.name.removeprefix("seed-")
        raise RedxError(f"{run} holds no parts of seed {number}; finish the run with `redx run` first.")
    about = [_read_about(path) for path in paths]
    if any(one != about[0] for one in about):
        raise RedxError(f"The files in {folder} belong to different states of the run; repeat the `redx run`.")
    if about[0] and (missing := sorted(set(about[0]["banks"]) - {path.name for path in paths})):
        raise RedxError(f"{folder} lacks {missing[0]}, so its rules would be incomplete; repeat the `redx run`.")
    if about[0] and (unknown := sorted({path.name for path in paths} - set(about[0]["banks"]))):
        raise RedxError(f"{folder / unknown[0]} does not belong to the others; move it away.")
    check_modules(seed_folder, about[0].get("modules", {}))
    domains = tuple(about[0]["domains"]) if about[0] else _folder_domains(seed_folder)
    classes = tuple(about[0].get("classes", ()))
    banks, controls = {}, read_controls(seed_folder)
    for path in paths:
        if only is not None and _bank_id(path) != only:
            continue
        tensors = read_tensors(path)
        with guarded(path, "does not hold parts", "repeat the run with --out ANOTHER"):
            parts = _check_parts(_to_parts(tensors), len(domains) or MAX_DOMAINS)
            if classes and len(classes) != parts.base.shape[1]:
                raise ValueError("logits of other classes than those that it names")
            bank_id = _bank_id(path)
            banks[bank_id] = parts if parts.confidences is None else _with_cutoffs(parts, controls, bank_id)
    if len({len(parts) for parts in banks.values()}) > 1:
        raise RedxError(f"The parts in {folder} are of different examples; repeat the run with --out ANOTHER.")
    return StoredParts(banks, domains, classes)


def _to_tensors(parts: Parts) -> dict[str, Tensor]:
    losses = {} if parts.losses is None else parts.losses.tensors()
    return parts.tensors() | {f"losses.{name}": tensor.contiguous() for name, tensor in losses.items()}


def _to_parts(tensors: dict[str, Tensor]) -> Parts:
    losses = without_prefix(tensors, "losses")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("losses.")}
    names = ("base", "residuals", "gates", "labels", "domains")
    if unknown := sorted(set(tensors) - {*names, "confidences", "groups", "named"}):
        raise ValueError(f"a tensor {unknown[0]}")
    for name, tensor in tensors.items():
        if tensor.dtype != (torch.int64 if name in ("labels", "domains", "groups", "named") else torch.float32):
            raise ValueError(f"{name} of another type")
    known = Losses.from_tensors(losses) if losses else None
    if known and known.experts.shape != tensors["gates"].shape:
        raise ValueError("losses of other examples")
    if known and any(values.shape != tensors["labels"].shape for values in (known.base, *known.mixed.values())):
        raise ValueError("losses of other examples")
    base, residuals, gates, labels, domains = (tensors[name] for name in names)
    sure, groups = tensors.get("confidences"), tensors.get("groups")
    named = tensors.get("named")
    return Parts(base, residuals, gates, labels, domains, sure, groups=groups, losses=known, named=named)


def _with_cutoffs(parts: Parts, controls: Mapping[BankId | None, RiskControl], bank_id: BankId) -> Parts:
    if None not in controls:
        raise ValueError("no calibration beside them")
    return replace(parts, cutoffs=controls.get(bank_id, controls[None]).cutoffs_for(parts.base, parts.named))


def _folder_domains(seed_folder: Path) -> tuple[str, ...]:
    return read_domain_names(seed_folder) if exists(seed_folder / "model.json") else ()


def _check_parts(parts: Parts, domains: int) -> Parts:
    """Return parts from a file, or raise an error where labels or domains cannot be those of a run."""
    labels, owners = parts.true_labels(), parts.true_domains()
    _, experts, classes = parts.residuals.shape
    inside = classes == 1 or bool(((labels >= 0) & (labels < classes)).all())
    if not len(parts) or not experts or not classes or not inside:
        raise ValueError("no examples, or labels that are no classes")
    if not bool(((owners >= 0) & (owners < domains)).all()):
        raise ValueError("domains that the run does not have")
    return parts


def _read_about(path: Path) -> dict[str, Any]:
    """Return what a file says about its set; nothing for a file of an older version."""
    with open_safetensors(path, "is truncated or not a safetensors file", "repeat the run with --out ANOTHER") as file:
        text = file.metadata.get(KEY)
    if not text:
        return {}
    with guarded(path, "has damaged metadata", "repeat the run with --out ANOTHER"):
        return SetInfo.model_validate(parse_json(text)).model_dump()


def _file_name(bank_id: BankId) -> str:
    return f"{bank_id.form}-{bank_id.name}.safetensors"


def _bank_id(path: Path) -> BankId:
    return BankId.parse(path.stem.replace("-", "/", 1))
