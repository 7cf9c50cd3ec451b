"""One seed of a run as one file: exported whole, shrunk to what was trained, and evaluated again from either.

A checkpoint is a safetensors file. `backbone.NAME` are the tensors of the language model under its own names, of which
the trained top blocks carry the trained values; `FILE:NAME` are those of the seed's other files; `answers:RULE/BANK`
are what the run answered on its test split. Settings, JSON files and the backbone's fingerprint stand in its metadata.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from redx import pipeline, store
from redx.composition import rules
from redx.composition.evaluation import Banks, match_banks, predict
from redx.composition.rules import RULES
from redx.config import RunConfig, StrictConfig
from redx.errors import RedxError
from redx.io.files import atomic_path, read_json, read_tensors, write_json, write_tensors
from redx.io.tensor_files import CHECKPOINT_KEY, TensorEntry, TensorSource, is_safe_path, open_tensors
from redx.models.backbones import hub
from redx.models.backbones.tensor_names import (
    SUFFIX,
    TRAINED,
    WRAPPERS,
    hash_backbone_files,
    layer_stack,
    locate_tensor,
    open_backbone,
)
from redx.tasks import get_task

FILES = re.compile(r"(base|pooled|router|integration|decomposer|experts/[^/]+/expert)")  # of a seed, with tensors


DATA = ("parts/", "shared")  # what a seed keeps beside its trained modules


TRUNK = "encoder.trunk.model."  # where the base's file holds trained blocks


class Backbone(StrictConfig):
    """Which language model a checkpoint needs."""

    fingerprint: str
    files: dict[str, str]  # hash of each, to tell which of them differs


class Facts(StrictConfig):
    """What a checkpoint says about itself."""

    version: int = 1
    kind: Literal["full", "slim"]
    layers: int  # of the whole language model
    seed: int | None = None  # None: not of a run of ours
    test: str = ""  # hash of the test split
    backbone: Backbone | None = None
    beside: dict[str, Any] = {}  # what a `.pt` held beside its tensors


@dataclass(frozen=True)
class About:
    """The metadata of a checkpoint of a run."""

    facts: Facts
    config: RunConfig
    files: dict[str, Any]  # JSON files of the seed, by path


@dataclass(frozen=True)
class Size:
    """How much a file holds."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class Made:
    """A file that was written, and what it was made from."""

    path: Path
    before: Size
    after: Size
    left_out: list[str]  # tensors, and states of optimisers

    @property
    def share(self) -> float:
        return self.after.bytes / self.before.bytes


@dataclass(frozen=True)
class Evaluated:
    """What a checkpoint says about its test split, computed anew."""

    config: RunConfig
    seed: int
    kind: str
    domains: tuple[str, ...]
    banks: Banks
    same: dict[str, float]  # for each rule and bank, the share of answers that are the run's


def export(folder: Path, out: Path | None = None, seed: int | None = None) -> Made:
    """Write everything of one seed of a finished run into one file, the language model included."""
    config = store.read_config(folder)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise RedxError(f"{folder} holds no seed {seed}; choose one of {', '.join(map(str, config.seeds))}.")
    out = _target(out or Path(f"{folder.resolve().name}-seed-{seed}{SUFFIX}"))
    place = folder / f"seed-{seed}"
    said = _answers(store.read_parts(folder, seed))
    tensors = {f"answers:{name}": _narrow(values) for name, values in said.items()}
    for path in sorted(place.rglob(f"*{SUFFIX}")):
        name = path.relative_to(place).with_suffix("").as_posix()
        if name.startswith(DATA):
            continue
        if not FILES.fullmatch(name):
            raise RedxError(f"{path} is no file that redx knows; take it out of the run.")
        tensors |= {f"{name}:{key}": tensor for key, tensor in read_tensors(path).items()}
    jsons = {path.relative_to(place).as_posix(): read_json(path) for path in sorted(place.rglob("*.json"))}
    jsons.pop("stages.json", None)
    hashes = read_json(folder / "data.json")["sha256"].get(str(seed))
    if hashes is None:
        raise RedxError(f"{folder} is not finished with seed {seed}; finish it with `redx run` first.")
    facts = Facts(kind="full", seed=seed, layers=0, test=hashes["test"])
    with ExitStack() as stack:
        if config.base.trunk.shape != "none":
            model = hub.model_folder(config.backbone)
            frozen = {name: get() for name, get in open_backbone(model, stack).items()}
            mark = Backbone(fingerprint=hub.hash_model(model), files=hash_backbone_files(model))
            facts = facts.model_copy(update={"layers": layer_stack(frozen)[1], "backbone": mark})
            tensors = _into_backbone(tensors, frozen, _trained(config))
        _write(out, tensors, _metadata(About(facts, config, jsons)))
    size = _size(_entries(out).values(), out)
    return Made(out, size, size, [])


def _answers(banks: Banks) -> dict[str, Tensor]:
    """What every rule answers with every bank, by RULE/BANK."""
    found = match_banks(banks, tuple(RULES))
    return {f"{rule.name}/{bank}".rstrip("/"): predict(rule, parts, rule.weights(parts)) for rule, bank, parts in found}


def _narrow(values: Tensor) -> Tensor:
    """Answers in two bytes each, where they fit."""
    small = torch.iinfo(torch.int16)
    fits = not len(values) or (small.min <= int(values.min()) and int(values.max()) <= small.max)
    return values.to(torch.int16) if fits else values


def _trained(config: RunConfig) -> int:
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


def shrink(
    path: Path,
    layers: int,
    dtype: str | None = None,
    out: Path | None = None,
    keep: Sequence[str] = (),
    rule: str | None = None,
) -> Made:
    """Write a file with the last layers and what is no part of the pretrained model; what is unknown is refused.

    With a rule, only the bank of experts that it reads is kept.
    """
    out = _target(out or path.with_name(f"{path.name.removesuffix(path.suffix)}.slim{SUFFIX}"))
    if dtype not in (None, "float32", "float16", "bfloat16"):
        raise RedxError(f"There is no precision {dtype!r} to store in; choose float32, float16 or bfloat16.")
    if out.resolve() == path.resolve():
        raise RedxError(f"{out} would overwrite what it is made from; choose another name with --out.")
    with open_tensors(path) as source:
        about = _about(path, source)
        kept = _choose(path, source, layers, keep, about)
        if rule:
            about, key = _narrow_to(path, about, rule)
            kept = [name for name in kept if _serves(name, key, about.config)]
        tensors = {name: _convert(path, name, source.get(name), dtype) for name in kept}
        if about:
            facts = about.facts.model_copy(update={"kind": "slim"})
            _write(out, tensors, _metadata(About(facts, about.config, about.files)))
        else:
            facts = Facts(kind="slim", layers=layer_stack(source.entries)[1], beside=source.about)
            _write(out, tensors, {CHECKPOINT_KEY: json.dumps(facts.model_dump())})
        dropped = [name for name in source.entries if name not in tensors]
        before = _size(source.entries.values(), path)
    return Made(out, before, _size(_entries(out).values(), out), [*dropped, *source.left_out])


def _narrow_to(path: Path, about: About | None, name: str) -> tuple[About, str]:
    """A checkpoint's facts with the one bank that a rule reads, and that bank."""
    if about is None or about.facts.seed is None:
        raise RedxError(f"{path} is no checkpoint of a run, so no rule can choose its tensors; leave out --rule.")
    rule, _, bank = name.partition("/")
    form = rules.get_rule(rule).form
    key = f"{form}/{bank or about.config.main.get(form)}"
    if form not in ("residual", "standalone") or key not in about.config.banks:
        have = ", ".join(about.config.of_form("residual", "standalone"))
        raise RedxError(f"Rule {name!r} reads the bank {key}, and {path} can be narrowed to {have}.")
    banks = {each: about.config.banks[each] for each in dict.fromkeys((about.config.banks[key].of or key, key))}
    fewer = {"banks": banks, "main": {form: key.split("/")[1]}, "integrate": False, "average": False}
    return About(about.facts, about.config.model_copy(update=fewer), about.files), key


def _serves(name: str, key: str, config: RunConfig) -> bool:
    """Whether a tensor is needed where only one bank is asked."""
    part, colon, inner = name.partition(":")
    form, bank = key.split("/")
    if part == "answers":
        rule, _, other = inner.partition("/")
        return rule == "base" or (RULES[rule].form == form and other == bank)
    if part.startswith("experts/"):
        source = config.banks[key].of or key
        return inner.startswith((f"{source}.", "ownership.") if config.banks[key].owned else f"{source}.")
    return not colon or part not in ("pooled", "integration")


def _choose(path: Path, source: TensorSource, layers: int, keep: Sequence[str], about: About | None) -> list[str]:
    """The names of the tensors that stay."""
    names = source.entries
    _, depth = layer_stack(names)
    have = {int(place["layer"]) for name in names if (place := locate_tensor(name)) and place["layer"]}
    if not 0 <= layers <= len(have):
        raise RedxError(f"{path} holds {len(have)} layers, of which {layers} cannot be kept; choose 0 to {len(have)}.")
    if about and layers < (trained := _trained(about.config)):
        raise RedxError(
            f"The run trained the last {trained} layers, so keeping {layers} would change its answers; "
            f"choose --trainable-last-n-layers {trained} or more."
        )
    chosen, unknown = [], []
    for name in names:
        place = locate_tensor(name)
        if any(name.startswith(prefix) for prefix in keep) or _is_trained(name):
            chosen.append(name)
        elif place is None or (place["head"] and not _is_frozen_head(name, source, about)):
            unknown.append(name)
        elif (place["layer"] and int(place["layer"]) >= depth - layers) or (place["norm"] and layers):
            chosen.append(name)
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise RedxError(
            f"{path} holds tensors that redx does not know ({', '.join(unknown[:3])}{more}); "
            "name those that were trained with --keep PREFIX."
        )
    if not chosen:
        raise RedxError(f"Nothing of {path} would be kept; choose a higher --trainable-last-n-layers.")
    return chosen


def _is_trained(name: str) -> bool:
    """Whether a tensor is, by its name, no part of a pretrained model."""
    part, colon, _ = name.partition(":")
    if colon:
        return part == "answers" or FILES.fullmatch(part) is not None
    return TRAINED.match(WRAPPERS.sub("", name)) is not None


def _is_frozen_head(name: str, source: TensorSource, about: About | None) -> bool:
    """Whether a language model's own output is frozen: in our runs always, elsewhere where it is its embeddings."""
    if about:
        return True
    tied = [other for other in source.entries if other.endswith(("embed_tokens.weight", "wte.weight"))]
    return name.endswith("lm_head.weight") and any(torch.equal(source.get(name), source.get(other)) for other in tied)


def _convert(path: Path, name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    """A matrix in another precision; vectors (norms, biases, the bus, scores) are few, and keep theirs."""
    if dtype is None or not tensor.is_floating_point() or tensor.ndim < 2:
        return tensor.clone().contiguous()  # names that share their values are written apart
    new = tensor.to(getattr(torch, dtype))
    if bool((tensor.isfinite() & ~new.isfinite()).any()):
        raise RedxError(f"{name} in {path} is too large for {dtype}; choose --dtype bfloat16 or float32.")
    return new.clone().contiguous()


def evaluate(path: Path, backbone: str | None = None) -> Evaluated:
    """Put a checkpoint together again with the frozen blocks of its backbone, and ask it its test split."""
    with open_tensors(path) as source:
        about = _about(path, source)
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
                _restore(path, source, About(facts, config, about.files), Path(scratch))
                model = pipeline.load(scratch, seed)
                banks = pipeline.describe_test(model, data)
            except RedxError as error:
                raise RedxError(str(error).replace(scratch, str(path))) from error
            except (RuntimeError, ValueError, LookupError, TypeError) as error:  # a file made by hand
                raise RedxError(f"The tensors of {path} do not fit its settings; make it anew from its run.") from error
            domains = tuple(dict.fromkeys((*model.domains, *data.domains)))  # the experts, then whoever has none
        same = {}
        for name, said in _answers(banks).items():
            if f"answers:{name}" in source.entries:
                before = source.get(f"answers:{name}").long()
                same[name] = float((said == before).double().mean()) if before.shape == said.shape else 0.0
    return Evaluated(config, seed, facts.kind, domains, banks, same)


def _restore(path: Path, source: TensorSource, about: About, folder: Path) -> None:
    """A run folder of one seed from a checkpoint, as far as a model needs it."""
    place = folder / f"seed-{about.facts.seed}"
    files: dict[str, dict[str, Tensor]] = {}
    for name in source.entries:
        part, colon, inner = name.partition(":")
        if colon and part != "answers":
            if not FILES.fullmatch(part):
                raise RedxError(f"{path} holds a tensor that redx does not know ({name}); make it anew from its run.")
            files.setdefault(part, {})[inner] = _widen(source.get(name))
    files.setdefault("base", {}).update(_blocks(path, source, about))
    write_json(folder / "config.json", about.config.model_dump(mode="json"))
    for name, value in about.files.items():
        write_json(place / name, value)
    for part, tensors in files.items():
        write_tensors(place / f"{part}{SUFFIX}", tensors)


def _blocks(path: Path, source: TensorSource, about: About) -> dict[str, Tensor]:
    """The trained blocks of a checkpoint by the names of the base's file; all others must be the backbone's own."""
    config, recorded, trained = about.config, about.facts.backbone, _trained(about.config)
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


def _metadata(about: About) -> dict[str, str]:
    """What a checkpoint says about itself, as text."""
    facts, config = about.facts.model_dump_json(), about.config.model_dump_json()
    return {CHECKPOINT_KEY: facts, "config": config, "files": json.dumps(about.files)}


def _about(path: Path, source: TensorSource) -> About | None:
    """The inverse, each name in it checked; None where a file is not of a run of ours."""
    if CHECKPOINT_KEY not in source.about:
        return None
    try:
        facts = Facts.model_validate_json(source.about[CHECKPOINT_KEY])
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
    return About(facts, config, files)


def _entries(path: Path) -> dict[str, TensorEntry]:
    with open_tensors(path) as source:
        return source.entries


def _size(entries: Iterable[TensorEntry], path: Path) -> Size:
    return Size(sum(entry.numbers for entry in entries if entry.real), path.stat().st_size)


def _target(out: Path) -> Path:
    if out.suffix != SUFFIX:
        raise RedxError(f"{out} is no name for a checkpoint; end it in {SUFFIX}.")
    return out


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """Write a checkpoint whole or not at all, straight from the tensors: a copy in memory could be gigabytes."""
    try:
        with atomic_path(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, about)
    except SafetensorError as error:  # it has its own error for a full disk
        raise RedxError(f"Cannot write {path} ({error}); free space or choose another place with --out.") from error
