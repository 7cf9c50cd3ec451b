"""One seed of a run as one file: exported whole, shrunk to what was trained, and evaluated again from either.

A checkpoint is a safetensors file. `backbone.NAME` are the tensors of the language model under its own names, of which
the trained top blocks carry the trained values; `FILE:NAME` are those of the seed's other files; `answers:RULE/BANK`
are what the run answered on its test split. Settings, JSON files and the backbone's fingerprint stand in its metadata.
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
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RULES, RuleId
from redx.config import RunConfig, StrictConfig
from redx.errors import RedxError
from redx.io.files import atomic_path, read_json, read_tensors, write_json, write_tensors
from redx.io.tensor_files import CHECKPOINT_KEY, TensorEntry, TensorSource, is_safe_path, open_tensors
from redx.models.backbones import hub
from redx.models.backbones.tensor_names import (
    SUFFIX,
    hash_backbone_files,
    layer_stack,
    locate_tensor,
    open_backbone,
)
from redx.runs import pipeline
from redx.runs.folder import load, read_config, read_parts
from redx.tasks import get_task

SEED_FILES = re.compile(r"(base|pooled|router|integration|decomposer|experts/[^/]+/expert)")  # of a seed, with tensors


DATA_FILES = ("parts/", "shared")  # what a seed keeps beside its trained modules


TRUNK = "encoder.trunk.model."  # where the base's file holds trained blocks


class BackboneInfo(StrictConfig):
    """Which language model a checkpoint needs."""

    fingerprint: str
    files: dict[str, str]  # hash of each, to tell which of them differs


class CheckpointInfo(StrictConfig):
    """What a checkpoint says about itself."""

    version: int = 1
    kind: Literal["full", "slim"]
    layers: int  # of the whole language model
    seed: int | None = None  # None: not of a run of ours
    test: str = ""  # hash of the test split
    backbone: BackboneInfo | None = None
    beside: dict[str, Any] = {}  # what a `.pt` held beside its tensors


@dataclass(frozen=True)
class CheckpointMetadata:
    """The metadata of a checkpoint of a run."""

    facts: CheckpointInfo
    config: RunConfig
    files: dict[str, Any]  # JSON files of the seed, by path


@dataclass(frozen=True)
class FileSize:
    """How much a file holds."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A file that was written, and what it was made from."""

    path: Path
    before: FileSize
    after: FileSize
    left_out: list[str]  # tensors, and states of optimisers

    @property
    def share(self) -> float:
        return self.after.bytes / self.before.bytes


@dataclass(frozen=True)
class EvaluatedCheckpoint:
    """What a checkpoint says about its test split, computed anew."""

    config: RunConfig
    seed: int
    kind: str
    domains: tuple[str, ...]
    banks: Banks
    same: dict[str, float]  # for each rule and bank, the share of answers that are the run's


def export_run(folder: Path, out: Path | None = None, seed: int | None = None) -> WrittenCheckpoint:
    """Write everything of one seed of a finished run into one file, the language model included."""
    config = read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    out = check_target(out or Path(f"{folder.resolve().name}-seed-{seed}{SUFFIX}"))
    place = folder / f"seed-{seed}"
    said = answers_by_rule(read_parts(folder, seed))
    tensors = {f"answers:{name}": _narrow(values) for name, values in said.items()}
    for path in sorted(place.rglob(f"*{SUFFIX}")):
        name = path.relative_to(place).with_suffix("").as_posix()
        if name.startswith(DATA_FILES):
            continue
        if not SEED_FILES.fullmatch(name):
            raise RedxError(f"{path} is no file that redx knows; take it out of the run.")
        tensors |= {f"{name}:{key}": tensor for key, tensor in read_tensors(path).items()}
    jsons = {path.relative_to(place).as_posix(): read_json(path) for path in sorted(place.rglob("*.json"))}
    jsons.pop("stages.json", None)
    hashes = read_json(folder / "data.json")["sha256"].get(str(seed))
    if hashes is None:
        raise RedxError(f"{folder} is not finished with seed {seed}; finish it with `redx run` first.")
    facts = CheckpointInfo(kind="full", seed=seed, layers=0, test=hashes["test"])
    with ExitStack() as stack:
        if config.base.trunk.shape != "none":
            model = hub.model_folder(config.backbone)
            frozen = {name: get() for name, get in open_backbone(model, stack).items()}
            mark = BackboneInfo(fingerprint=hub.hash_model(model), files=hash_backbone_files(model))
            facts = facts.model_copy(update={"layers": layer_stack(frozen)[1], "backbone": mark})
            tensors = _into_backbone(tensors, frozen, trained_blocks(config))
        write_checkpoint(out, tensors, format_metadata(CheckpointMetadata(facts, config, jsons)))
    size = measure_file(tensor_entries(out).values(), out)
    return WrittenCheckpoint(out, size, size, [])


def answers_by_rule(banks: Banks) -> dict[str, Tensor]:
    """What every rule answers with every bank, by RULE/BANK."""
    matched = match_banks(banks, tuple(RULES))
    return {str(RuleId(rule.name, bank)): predict(rule, parts, rule.weights(parts)) for rule, bank, parts in matched}


def _narrow(values: Tensor) -> Tensor:
    """Answers in two bytes each, where they fit."""
    small = torch.iinfo(torch.int16)
    fits = not len(values) or (small.min <= int(values.min()) and int(values.max()) <= small.max)
    return values.to(torch.int16) if fits else values


def trained_blocks(config: RunConfig) -> int:
    """How many top blocks of the language model the run trained."""
    return config.base.trunk.blocks if config.base.trunk.shape == "blocks" else 0


def _into_backbone(tensors: dict[str, Tensor], frozen: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The whole model with the trained blocks, if any, in their places, and all other tensors."""
    stack, depth = layer_stack(frozen)
    whole = dict(frozen)
    for name, tensor in tensors.items():
        inner = name.removeprefix(f"base:{TRUNK}")
        if inner == name or not count:
            whole[name] = tensor
            continue
        place = re.fullmatch(r"layers\.(\d+)\.(.+)", inner)
        target = f"{stack}layers.{int(place[1]) + depth - count}.{place[2]}" if place else f"{stack}{inner}"
        if target not in frozen or frozen[target].shape != tensor.shape:
            raise RedxError(f"{target} does not fit the run's trained blocks; give the run's own backbone.")
        whole[target] = tensor
    return whole


def evaluate_checkpoint(path: Path, backbone: str | None = None) -> EvaluatedCheckpoint:
    """Put a checkpoint together again with the frozen blocks of its backbone, and ask it its test split."""
    with open_tensors(path) as source:
        about = read_metadata(path, source)
        if about is None or about.facts.seed is None:
            raise RedxError(f"{path} is no checkpoint of a run; give a file that `redx export` or `redx shrink` made.")
        facts, seed = about.facts, about.facts.seed
        changes = {"seeds": (seed,)} | ({"backbone": backbone} if backbone else {})
        config = about.config.model_copy(update=changes)
        data = get_task(config.task).load(config, seed)
        if data.test.digest() != facts.test:
            raise RedxError(f"The test split of '{config.task}' is not the one {path} was made with; give its data.")
        with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
            try:
                _restore(path, source, CheckpointMetadata(facts, config, about.files), Path(scratch))
                model = load(scratch, seed)
                banks = pipeline.parts_of_test(model, data)
            except RedxError as error:
                raise RedxError(str(error).replace(scratch, str(path))) from error
            except (RuntimeError, ValueError, LookupError, TypeError) as error:  # a file made by hand
                raise RedxError(f"The tensors of {path} do not fit its settings; make it anew from its run.") from error
            domains = model.domain_names
        same = {}
        for name, said in answers_by_rule(banks).items():
            if f"answers:{name}" in source.entries:
                before = source.get(f"answers:{name}").long()
                same[name] = float((said == before).double().mean()) if before.shape == said.shape else 0.0
    return EvaluatedCheckpoint(config, seed, facts.kind, domains, banks, same)


def _restore(path: Path, source: TensorSource, about: CheckpointMetadata, folder: Path) -> None:
    """A run folder of one seed from a checkpoint, as far as a model needs it."""
    place = folder / f"seed-{about.facts.seed}"
    files: dict[str, dict[str, Tensor]] = {}
    for name in source.entries:
        part, colon, inner = name.partition(":")
        if colon and part != "answers":
            if not SEED_FILES.fullmatch(part):
                raise RedxError(f"{path} holds a tensor that redx does not know ({name}); make it anew from its run.")
            files.setdefault(part, {})[inner] = _widen(source.get(name))
    files.setdefault("base", {}).update(_blocks(path, source, about))
    write_json(folder / "config.json", about.config.model_dump(mode="json"))
    for name, value in about.files.items():
        write_json(place / name, value)
    for part, tensors in files.items():
        write_tensors(place / f"{part}{SUFFIX}", tensors)


def _blocks(path: Path, source: TensorSource, about: CheckpointMetadata) -> dict[str, Tensor]:
    """The trained blocks of a checkpoint by the names of the base's file; all others must be the backbone's own."""
    config, recorded, trained = about.config, about.facts.backbone, trained_blocks(about.config)
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
    first = about.facts.layers - trained
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        frozen = open_backbone(folder, stack)
        for name in source.entries:
            if ":" in name:
                continue
            place = locate_tensor(name)
            if name not in frozen:
                raise RedxError(f"{path} holds a tensor that redx does not know ({name}); make it anew from its run.")
            tensor = source.get(name)
            if trained and place and place["layer"] and int(place["layer"]) >= first:
                found[f"{TRUNK}layers.{int(place['layer']) - first}.{place['inner']}"] = _widen(tensor)
            elif trained and place and place["norm"]:
                found[f"{TRUNK}{place['norm']}.{place['side']}"] = _widen(tensor)
            elif not torch.equal(tensor, frozen[name]().to(tensor.dtype)):
                raise RedxError(f"{name} in {path} is not the backbone's, though no run trained it; export anew.")
    if len({name.split(".")[4] for name in found if f"{TRUNK}layers." in name}) != trained:
        raise RedxError(f"{path} lacks some of the {trained} layers that the run trained; shrink it anew.")
    return found


def _widen(tensor: Tensor) -> Tensor:
    """Half precision is for storing: everything is computed in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def format_metadata(about: CheckpointMetadata) -> dict[str, str]:
    """What a checkpoint says about itself, as text."""
    facts, config = about.facts.model_dump_json(), about.config.model_dump_json()
    return {CHECKPOINT_KEY: facts, "config": config, "files": json.dumps(about.files)}


def read_metadata(path: Path, source: TensorSource) -> CheckpointMetadata | None:
    """The inverse, each name in it checked; None where a file is not of a run of ours."""
    if CHECKPOINT_KEY not in source.about:
        return None
    try:
        facts = CheckpointInfo.model_validate_json(source.about[CHECKPOINT_KEY])
        if facts.seed is None:
            return None
        files = json.loads(source.about["files"])
        config = RunConfig.model_validate_json(source.about["config"])
        names = [*files, *files["model.json"]["domains"]]
    except (ValidationError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RedxError(f"The metadata of {path} is damaged; make it anew with `redx export`.") from error
    for name in names:
        if not isinstance(name, str) or not is_safe_path(name):
            raise RedxError(f"{path} has a path in the name {ascii(name)[:80]}; nothing is read from it.")
    return CheckpointMetadata(facts, config, files)


def tensor_entries(path: Path) -> dict[str, TensorEntry]:
    with open_tensors(path) as source:
        return source.entries


def measure_file(entries: Iterable[TensorEntry], path: Path) -> FileSize:
    return FileSize(sum(entry.numbers for entry in entries if entry.real), path.stat().st_size)


def check_target(out: Path) -> Path:
    if out.suffix != SUFFIX:
        raise RedxError(f"{out} is no name for a checkpoint; end it in {SUFFIX}.")
    return out


def write_checkpoint(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write a checkpoint whole or not at all, straight from the tensors: a copy in memory could be gigabytes."""
    try:
        with atomic_path(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, about)
    except SafetensorError as error:  # it has its own error for a full disk
        raise RedxError(f"Cannot write {path} ({error}); free space or choose another place with --out.") from error
