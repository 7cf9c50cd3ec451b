"""Shrink a checkpoint to what was trained: the last layers, and all tensors outside the pretrained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from redx.composition.rules import RULES, RuleId, get_rule
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
    CheckpointInfo,
    CheckpointMetadata,
    WrittenCheckpoint,
    check_target,
    format_metadata,
    is_seed_file,
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
    """Write a smaller checkpoint without the frozen layers; a tensor of unknown origin is refused.

    Parameters
    ----------
    path
        A full checkpoint, or a `.pt` file of a state dict.
    layers
        Keep this many of the last layers of the language model.
    dtype
        Store matrices in float32, float16 or bfloat16; None keeps their precision.
    out
        The file to write; `FILE.slim.safetensors` by default.
    keep
        Prefixes of names of further tensors to keep.
    rule
        Keep only the bank of experts that this rule reads.

    Returns
    -------
    WrittenCheckpoint
        Path and size of the new file, and what was left out.
    """
    out = check_target(out or path.with_name(f"{path.name.removesuffix(path.suffix)}.slim{SUFFIX}"))
    if dtype not in (None, "float32", "float16", "bfloat16"):
        raise RedxError(f"There is no precision {dtype!r} to store in; choose float32, float16 or bfloat16.")
    if out.resolve() == path.resolve():
        raise RedxError(f"{out} would overwrite what it is made from; choose another name with --out.")
    with open_tensors(path) as source:
        metadata = read_metadata(path, source)
        kept = _kept_tensors(path, source, layers, keep, metadata)
        if rule:
            metadata, bank_id = _keep_one_bank(path, metadata, rule)
            kept = [name for name in kept if _is_needed(name, bank_id, metadata.config)]
        tensors = {name: _convert(path, name, source.get(name), dtype) for name in kept}
        if metadata:
            info = metadata.info.model_copy(update={"kind": "slim"})
            write_checkpoint(out, tensors, format_metadata(CheckpointMetadata(info, metadata.config, metadata.files)))
        else:
            info = CheckpointInfo(kind="slim", layers=layer_stack(source.entries)[1], values=source.about)
            write_checkpoint(out, tensors, {CHECKPOINT_KEY: json.dumps(info.model_dump())})
        dropped = [name for name in source.entries if name not in tensors]
        before = measure_file(source.entries.values(), path)
    return WrittenCheckpoint(out, before, measure_file(tensor_entries(out).values(), out), [*dropped, *source.left_out])


def _keep_one_bank(path: Path, metadata: CheckpointMetadata | None, name: str) -> tuple[CheckpointMetadata, BankId]:
    """Return the metadata with the one bank that a rule reads, and that bank."""
    if metadata is None or metadata.info.seed is None:
        raise RedxError(f"{path} is no checkpoint of a run, so no rule can choose its tensors; leave out --rule.")
    rule, bank = RuleId.parse(name)
    form, config = get_rule(rule).form, metadata.config
    bank_id = BankId(form, bank) if bank else config.main_bank(form)
    if form not in ("residual", "standalone") or bank_id not in config.banks:
        have = ", ".join(map(str, config.of_form("residual", "standalone")))
        raise RedxError(f"Rule {name!r} reads the bank {bank_id}, and {path} can be narrowed to {have}.")
    banks = {kept: config.banks[kept] for kept in dict.fromkeys((config.trained_as(bank_id), bank_id))}
    fewer = {"banks": banks, "main": {form: bank_id.name}, "integrate": False, "average": False}
    return CheckpointMetadata(metadata.info, config.model_copy(update=fewer), metadata.files), bank_id


def _is_needed(name: str, bank_id: BankId, config: RunConfig) -> bool:
    """Return whether a tensor is needed to run this bank alone."""
    part, colon, inner = name.partition(":")
    if part == "answers":
        rule, bank = RuleId.parse(inner)
        return rule == "base" or BankId(RULES[rule].form, bank) == bank_id
    if part.startswith("experts/"):
        source = config.trained_as(bank_id)
        return inner.startswith((f"{source}.", "ownership.") if config.has_ownership else f"{source}.")
    return not colon or part not in ("pooled", "integration")


def _kept_tensors(
    path: Path, source: TensorSource, layers: int, keep: Sequence[str], metadata: CheckpointMetadata | None
) -> list[str]:
    """Return the names of the tensors to keep."""
    names = source.entries
    _, depth = layer_stack(names)
    have = {int(location["layer"]) for name in names if (location := locate_tensor(name)) and location["layer"]}
    if not 0 <= layers <= len(have):
        raise RedxError(f"{path} holds {len(have)} layers, of which {layers} cannot be kept; choose 0 to {len(have)}.")
    if metadata and layers < (trained := trained_blocks(metadata.config)):
        raise RedxError(
            f"The run trained the last {trained} layers, so keeping {layers} would change its answers; "
            f"choose --trainable-last-n-layers {trained} or more."
        )
    chosen, unknown = [], []
    for name in names:
        location = locate_tensor(name)
        if any(name.startswith(prefix) for prefix in keep) or _is_trained(name, metadata):
            chosen.append(name)
        elif location is None or (location["head"] and not _is_frozen_head(name, source, metadata)):
            unknown.append(name)
        elif (location["layer"] and int(location["layer"]) >= depth - layers) or (location["norm"] and layers):
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


def _is_trained(name: str, metadata: CheckpointMetadata | None) -> bool:
    """Return whether a tensor's name shows that it is no part of a pretrained model."""
    part, colon, _ = name.partition(":")
    if colon:
        return part == "answers" or is_seed_file(part, metadata.config if metadata else None)
    return TRAINED.match(WRAPPERS.sub("", name)) is not None


def _is_frozen_head(name: str, source: TensorSource, metadata: CheckpointMetadata | None) -> bool:
    """Return whether a language model's head is frozen: always in runs, elsewhere where it equals the embeddings."""
    if metadata:
        return True
    tied = [other for other in source.entries if other.endswith(("embed_tokens.weight", "wte.weight"))]
    return name.endswith("lm_head.weight") and any(torch.equal(source.get(name), source.get(other)) for other in tied)


def _convert(path: Path, name: str, tensor: Tensor, dtype: str | None) -> Tensor:
    """Return a matrix in another precision; vectors (norms, biases, scores) are small and keep theirs."""
    if dtype is None or not tensor.is_floating_point() or tensor.ndim < 2:
        return tensor.clone().contiguous()  # tensors that share memory are written apart
    new = tensor.to(getattr(torch, dtype))
    if bool((tensor.isfinite() & ~new.isfinite()).any()):
        raise RedxError(f"{name} in {path} is too large for {dtype}; choose --dtype bfloat16 or float32.")
    return new.clone().contiguous()
