"""One seed of a run as one file: exported whole, shrunk to what was trained, and evaluated again from either.

A checkpoint is a safetensors file. `backbone.NAME` are the tensors of the language model under its own names, of which
the trained top blocks carry the trained values; `FILE:NAME` are those of the seed's other files; `answers:RULE/BANK`
are what the run answered on its test split. Settings, JSON files and the backbone's fingerprint stand in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from redx.composition import rules
from redx.composition.rules import RULES, RuleId
from redx.config import BankId, RunConfig
from redx.errors import RedxError
from redx.io.tensor_files import CHECKPOINT_KEY, TensorSource, open_tensors
from redx.models.backbones.tensor_names import (
    SUFFIX,
    TRAINED,
    WRAPPERS,
    layer_stack,
    locate_tensor,
)
from redx.runs.checkpoint import (
    SEED_FILES,
    CheckpointInfo,
    CheckpointMetadata,
    WrittenCheckpoint,
    check_target,
    format_metadata,
    measure_file,
    read_metadata,
    tensor_entries,
    trained_blocks,
    write_checkpoint,
)


def shrink(
    path: Path,
    layers: int,
    dtype: str | None = None,
    out: Path | None = None,
    keep: Sequence[str] = (),
    rule: str | None = None,
) -> WrittenCheckpoint:
    """Write a file with the last layers and what is no part of the pretrained model; what is unknown is refused.

    With a rule, only the bank of experts that it reads is kept.
    """
    out = check_target(out or path.with_name(f"{path.name.removesuffix(path.suffix)}.slim{SUFFIX}"))
    if dtype not in (None, "float32", "float16", "bfloat16"):
        raise RedxError(f"There is no precision {dtype!r} to store in; choose float32, float16 or bfloat16.")
    if out.resolve() == path.resolve():
        raise RedxError(f"{out} would overwrite what it is made from; choose another name with --out.")
    with open_tensors(path) as source:
        about = read_metadata(path, source)
        kept = _kept_tensors(path, source, layers, keep, about)
        if rule:
            about, key = _narrow_to(path, about, rule)
            kept = [name for name in kept if _is_needed(name, key, about.config)]
        tensors = {name: _convert(path, name, source.get(name), dtype) for name in kept}
        if about:
            facts = about.facts.model_copy(update={"kind": "slim"})
            write_checkpoint(out, tensors, format_metadata(CheckpointMetadata(facts, about.config, about.files)))
        else:
            facts = CheckpointInfo(kind="slim", layers=layer_stack(source.entries)[1], beside=source.about)
            write_checkpoint(out, tensors, {CHECKPOINT_KEY: json.dumps(facts.model_dump())})
        dropped = [name for name in source.entries if name not in tensors]
        before = measure_file(source.entries.values(), path)
    return WrittenCheckpoint(out, before, measure_file(tensor_entries(out).values(), out), [*dropped, *source.left_out])


def _narrow_to(path: Path, about: CheckpointMetadata | None, name: str) -> tuple[CheckpointMetadata, BankId]:
    """A checkpoint's facts with the one bank that a rule reads, and that bank."""
    if about is None or about.facts.seed is None:
        raise RedxError(f"{path} is no checkpoint of a run, so no rule can choose its tensors; leave out --rule.")
    rule, bank = RuleId.parse(name)
    form = rules.get_rule(rule).form
    key = BankId(form, bank) if bank else about.config.main_bank(form)
    if form not in ("residual", "standalone") or key not in about.config.banks:
        have = ", ".join(map(str, about.config.of_form("residual", "standalone")))
        raise RedxError(f"Rule {name!r} reads the bank {key}, and {path} can be narrowed to {have}.")
    banks = {bank_id: about.config.banks[bank_id] for bank_id in dict.fromkeys((about.config.trained_as(key), key))}
    fewer = {"banks": banks, "main": {form: key.name}, "integrate": False, "average": False}
    return CheckpointMetadata(about.facts, about.config.model_copy(update=fewer), about.files), key


def _is_needed(name: str, key: BankId, config: RunConfig) -> bool:
    """Whether a tensor is needed where only one bank is asked."""
    part, colon, inner = name.partition(":")
    if part == "answers":
        rule, bank = RuleId.parse(inner)
        return rule == "base" or BankId(RULES[rule].form, bank) == key
    if part.startswith("experts/"):
        source = config.trained_as(key)
        return inner.startswith((f"{source}.", "ownership.") if config.banks[key].owned else f"{source}.")
    return not colon or part not in ("pooled", "integration")


def _kept_tensors(
    path: Path, source: TensorSource, layers: int, keep: Sequence[str], about: CheckpointMetadata | None
) -> list[str]:
    """The names of the tensors that stay."""
    names = source.entries
    _, depth = layer_stack(names)
    have = {int(place["layer"]) for name in names if (place := locate_tensor(name)) and place["layer"]}
    if not 0 <= layers <= len(have):
        raise RedxError(f"{path} holds {len(have)} layers, of which {layers} cannot be kept; choose 0 to {len(have)}.")
    if about and layers < (trained := trained_blocks(about.config)):
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
        return part == "answers" or SEED_FILES.fullmatch(part) is not None
    return TRAINED.match(WRAPPERS.sub("", name)) is not None


def _is_frozen_head(name: str, source: TensorSource, about: CheckpointMetadata | None) -> bool:
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
