"""One seed of a run as one checkpoint file: export it, and evaluate it again.

A checkpoint is a safetensors file. `backbone.NAME` are the tensors of the language model under its own names, where the
trained top blocks have their trained values; `FILE:NAME` are the tensors of the seed's other files; `answers:RULE/BANK`
are the run's answers on its test split. Settings, JSON files and the backbone's fingerprint are in the metadata.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RuleId, general_rules
from redx.config import RunConfig, StrictConfig
from redx.errors import RedxError
from redx.io.files import atomic_path, write_json, write_tensors
from redx.io.reading import exists, parse_json, read_json
from redx.io.safetensors_files import read_tensors
from redx.io.tensor_files import CHECKPOINT_KEY, TensorEntry, TensorSource, is_safe_path, open_tensors
from redx.model.persistence import read_info
from redx.models.backbones import hub
from redx.models.backbones.tensor_names import SUFFIX, hash_backbone_files, layer_stack, locate_tensor, open_backbone
from redx.models.encoder import build_encoder
from redx.models.ridge_head import DESCRIPTION
from redx.runs.folder import DataFile, choose_seed, load
from redx.runs.parts import read_parts
from redx.runs.stages import parts_of_test
from redx.runs.transaction import consistently
from redx.tasks import extension_of, get_task
from redx.training.features import embed_split

# files of a seed that hold trained tensors
SEED_FILES = re.compile(r"(base|head|pooled|router|integration|thresholds|experts/[^/]+/expert)")
# files that hold data of a seed, sums over data, or experts of a comparison; a checkpoint leaves them out
DATA_FILES = re.compile(r"(parts/|removed/|shared-only/).*|shared|features|experts/[^/]+/statistics")
TRUNK = "encoder.trunk.model."  # prefix of trained blocks in the base's file


class BackboneInfo(StrictConfig):
    """Which language model a checkpoint needs."""

    fingerprint: str
    files: dict[str, str]  # hash of each, to tell which of them differs


class CheckpointInfo(StrictConfig):
    """What a checkpoint is; stored in its metadata."""

    version: int = 1
    kind: Literal["full", "slim"]
    layers: int = Field(ge=0, le=100_000)  # number of layers of the whole language model
    seed: int | None = Field(default=None, ge=0)  # None: the checkpoint was not made from a run
    test: str = ""  # hash of the test split
    backbone: BackboneInfo | None = None
    values: dict[str, Any] = {}  # plain values that a `.pt` held beside its tensors


@dataclass(frozen=True)
class CheckpointMetadata:
    """The metadata of a checkpoint of a run."""

    info: CheckpointInfo
    config: RunConfig
    files: dict[str, Any]  # JSON files of the seed, by path


@dataclass(frozen=True)
class FileSize:
    """How much a checkpoint file holds."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that was written, with its size before and after."""

    path: Path
    before: FileSize
    after: FileSize
    left_out: list[str]  # names of tensors and optimiser states

    @property
    def share(self) -> float:
        """The size of the new file as a share of the old one."""
        return self.after.bytes / self.before.bytes


@dataclass(frozen=True)
class EvaluatedCheckpoint:
    """A checkpoint that was run on its test split."""

    config: RunConfig
    seed: int
    kind: str
    domains: tuple[str, ...]
    banks: Banks
    same: dict[str, float]  # by rule and bank: share of answers that equal the run's own


def export_run(folder: Path, out: Path | None = None, seed: int | None = None) -> WrittenCheckpoint:
    """Write everything of one seed of a finished run into one file, the language model included.

    Parameters
    ----------
    folder
        The run folder.
    out
        The file to write; `RUN-seed-N.safetensors` by default.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    WrittenCheckpoint
        Path and size of the file.
    """
    config, seed = choose_seed(folder, seed)
    out = check_target(out or Path(f"{folder.resolve().name}-seed-{seed}{SUFFIX}"))
    seed_folder = folder / f"seed-{seed}"
    tensors, json_files = consistently(folder, seed_folder, lambda: _read_seed(config, folder, seed_folder, seed))
    hashes = read_json(folder / "data.json", DataFile, misfit="does not hold the hashes of data").sha256.get(str(seed))
    if hashes is None or "test" not in hashes:
        raise RedxError(f"{folder} is not finished with seed {seed}; finish it with `redx run` first.")
    info = CheckpointInfo(kind="full", seed=seed, layers=0, test=hashes["test"])
    with ExitStack() as stack:
        if build_encoder(config).reads_text:
            model = hub.model_folder(config.backbone)
            frozen = {name: get() for name, get in open_backbone(model, stack).items()}
            backbone = BackboneInfo(fingerprint=hub.hash_model(model), files=hash_backbone_files(model))
            info = info.model_copy(update={"layers": layer_stack(frozen)[1], "backbone": backbone})
            tensors = _into_backbone(tensors, frozen, trained_blocks(config))
        write_checkpoint(out, tensors, format_metadata(CheckpointMetadata(info, config, json_files)))
    size = measure_file(tensor_entries(out).values(), out)
    return WrittenCheckpoint(out, size, size, [])


def is_seed_file(name: str, config: RunConfig | None) -> bool:
    """Return whether a file of this name holds trained tensors of such a run: the usual ones, or its extension's."""
    extension = extension_of(config) if config else None
    return bool(SEED_FILES.fullmatch(name)) or (extension is not None and name == extension.NAME)


def _read_seed(config: RunConfig, run: Path, folder: Path, seed: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the trained tensors of a seed with its answers, and its JSON files, as a checkpoint names them."""
    answers = answers_by_rule(read_parts(run, seed).banks)
    tensors = {f"answers:{name}": _narrow(values) for name, values in answers.items()}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if DATA_FILES.fullmatch(name) or "/." in f"/{name}":
            continue
        if not is_seed_file(name, config):
            raise RedxError(f"{path} is no file that redx knows; take it out of the run.")
        tensors |= {f"{name}:{key}": tensor for key, tensor in read_tensors(path).items()}
    json_paths = [*sorted(folder.glob("experts/*/expert.json")), folder / "model.json"]
    json_paths += [path for name in ("risk.json", DESCRIPTION) if exists(path := folder / name)]
    read_info(folder)  # so that nothing is exported that could not be restored
    return tensors, {path.relative_to(folder).as_posix(): read_json(path, dict) for path in json_paths}


def answers_by_rule(banks: Banks) -> dict[str, Tensor]:
    """Return the answers of every rule with every bank that it can read, by RULE/BANK."""
    matched = match_banks(banks, general_rules())
    return {str(RuleId(rule.name, bank)): predict(rule, parts, rule.weights(parts)) for rule, bank, parts in matched}


def _narrow(values: Tensor) -> Tensor:
    """Return answers as int16, where they fit."""
    small = torch.iinfo(torch.int16)
    fits = not len(values) or (small.min <= int(values.min()) and int(values.max()) <= small.max)
    return values.to(torch.int16) if fits else values


def trained_blocks(config: RunConfig) -> int:
    """Return how many top blocks of the language model a run trained."""
    return config.base.trunk.blocks if config.base.trunk.shape == "blocks" else 0


def _into_backbone(tensors: dict[str, Tensor], frozen: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return all tensors, with the trained blocks in place of the language model's own."""
    stack, depth = layer_stack(frozen)
    whole = dict(frozen)
    for name, tensor in tensors.items():
        inner = name.removeprefix(f"base:{TRUNK}")
        if inner == name or not count:
            whole[name] = tensor
            continue
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", inner)
        target = f"{stack}layers.{int(layer[1]) + depth - count}.{layer[2]}" if layer else f"{stack}{inner}"
        if target not in frozen or frozen[target].shape != tensor.shape:
            raise RedxError(f"{target} does not fit the run's trained blocks; give the run's own backbone.")
        whole[target] = tensor
    return whole


def evaluate_checkpoint(path: Path, backbone: str | None = None) -> EvaluatedCheckpoint:
    """Restore a model from a checkpoint and the frozen blocks of its backbone, and run it on its test split.

    Parameters
    ----------
    path
        A full or slim checkpoint of a run.
    backbone
        Where the frozen blocks are, if not where the run had them.
    """
    with open_tensors(path) as source:
        metadata = read_metadata(path, source)
        if metadata is None or metadata.info.seed is None:
            raise RedxError(f"{path} is no checkpoint of a run; give a file that `redx export` or `redx shrink` made.")
        info, seed = metadata.info, metadata.info.seed
        changes = {"seeds": (seed,)} | ({"backbone": backbone} if backbone else {})
        config = metadata.config.model_copy(update=changes)
        data = get_task(config.task).load(config, seed)
        if data.test.digest() != info.test:
            raise RedxError(f"The test split of '{config.task}' is not the one {path} was made with; give its data.")
        with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
            try:
                _restore(path, source, CheckpointMetadata(info, config, metadata.files), Path(scratch))
                model = load(scratch, seed)
                banks = parts_of_test(model, embed_split(model.config, model.base, data.test))
            except RedxError as error:
                raise RedxError(str(error).replace(scratch, str(path))) from error
            except Exception as error:  # a file made by hand
                raise RedxError(f"The tensors of {path} do not fit its settings; make it anew from its run.") from error
            domains = model.domain_names
        same = {}
        for name, answers in answers_by_rule(banks).items():
            if f"answers:{name}" in source.entries:
                before = source.get(f"answers:{name}").long()
                same[name] = float((answers == before).double().mean()) if before.shape == answers.shape else 0.0
    return EvaluatedCheckpoint(config, seed, info.kind, domains, banks, same)


def _restore(path: Path, source: TensorSource, metadata: CheckpointMetadata, folder: Path) -> None:
    """Write the files that a model needs from a checkpoint to a run folder."""
    seed_folder = folder / f"seed-{metadata.info.seed}"
    files: dict[str, dict[str, Tensor]] = {}
    for name in source.entries:
        part, colon, inner = name.partition(":")
        if colon and part != "answers":
            if not is_seed_file(part, metadata.config):
                raise RedxError(f"{path} holds a tensor that redx does not know ({name}); make it anew from its run.")
            files.setdefault(part, {})[inner] = _widen(source.get(name))
    files.setdefault("base", {}).update(_trained_block_tensors(path, source, metadata))
    write_json(folder / "config.json", metadata.config.model_dump(mode="json"))
    for name, value in metadata.files.items():
        write_json(seed_folder / name, value)
    for part, tensors in files.items():
        write_tensors(seed_folder / f"{part}{SUFFIX}", tensors)


def _trained_block_tensors(path: Path, source: TensorSource, metadata: CheckpointMetadata) -> dict[str, Tensor]:
    """Return the trained blocks by the names of the base's file, after checking that all others are the backbone's."""
    config, recorded, trained = metadata.config, metadata.info.backbone, trained_blocks(metadata.config)
    if recorded is None:
        return {}
    folder = hub.model_folder(config.backbone)
    if hub.hash_model(folder) != recorded.fingerprint:
        here, there = hash_backbone_files(folder), recorded.files
        other = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
        raise RedxError(
            f"The backbone {config.backbone} is not the one that {path} was trained on "
            f"(other {', '.join(other[:4]) or 'settings'}); give the right one with --backbone FOLDER."
        )
    first = metadata.info.layers - trained
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        frozen = open_backbone(folder, stack)
        for name in source.entries:
            if ":" in name:
                continue
            location = locate_tensor(name)
            if name not in frozen:
                raise RedxError(f"{path} holds a tensor that redx does not know ({name}); make it anew from its run.")
            tensor = source.get(name)
            if trained and location and location["layer"] and int(location["layer"]) >= first:
                tensors[f"{TRUNK}layers.{int(location['layer']) - first}.{location['inner']}"] = _widen(tensor)
            elif trained and location and location["norm"]:
                tensors[f"{TRUNK}{location['norm']}.{location['side']}"] = _widen(tensor)
            elif not torch.equal(tensor, frozen[name]().to(tensor.dtype)):
                raise RedxError(f"{name} in {path} is not the backbone's, though no run trained it; export anew.")
    if len({name.split(".")[4] for name in tensors if f"{TRUNK}layers." in name}) != trained:
        raise RedxError(f"{path} lacks some of the {trained} layers that the run trained; shrink it anew.")
    return tensors


def _widen(tensor: Tensor) -> Tensor:
    """Return half-precision tensors as float32; half precision is for storage only."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def format_metadata(metadata: CheckpointMetadata) -> dict[str, str]:
    """Return the metadata as the text values that a safetensors file can hold."""
    info, config = metadata.info.model_dump_json(), metadata.config.model_dump_json()
    return {CHECKPOINT_KEY: info, "config": config, "files": json.dumps(metadata.files)}


def read_metadata(path: Path, source: TensorSource) -> CheckpointMetadata | None:
    """Return the metadata of a checkpoint, with every name in it checked; None where it was not made from a run."""
    if CHECKPOINT_KEY not in source.about:
        return None
    try:
        info = CheckpointInfo.model_validate(parse_json(source.about[CHECKPOINT_KEY]))
        if info.seed is None:
            return None
        files = parse_json(source.about["files"])
        config = RunConfig.model_validate(parse_json(source.about["config"]))
        names = [*files, *files["model.json"]["domains"]]
    except Exception as error:  # whatever a file made by hand may bring
        raise RedxError(f"The metadata of {path} is damaged; make it anew with `redx export`.") from error
    for name in names:
        if not isinstance(name, str) or not is_safe_path(name):
            raise RedxError(f"{path} has a path in the name {ascii(name)[:80]}; nothing is read from it.")
    return CheckpointMetadata(info, config, files)


def tensor_entries(path: Path) -> dict[str, TensorEntry]:
    """Return the headers of all tensors in a file."""
    with open_tensors(path) as source:
        return source.entries


def measure_file(entries: Iterable[TensorEntry], path: Path) -> FileSize:
    """Return the number of floating-point values in a file and its bytes."""
    return FileSize(sum(entry.numbers for entry in entries if entry.real), path.stat().st_size)


def check_target(out: Path) -> Path:
    if out.suffix != SUFFIX:
        raise RedxError(f"{out} is no name for a checkpoint; end it in {SUFFIX}.")
    return out


def write_checkpoint(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a checkpoint atomically, straight from the tensors, since a copy in memory could take gigabytes."""
    try:
        with atomic_path(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
    except SafetensorError as error:  # it has its own error for a full disk
        raise RedxError(f"Cannot write {path} ({error}); free space or choose another folder with --out.") from error
