"""Checks of an adapter folder from outside, as `PeftModel.save_pretrained` writes it, before peft reads it.

Only two files count: adapter_config.json and adapter_model.safetensors. Pickles are refused, and so is every setting
that would name code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redx.adapters.base import BaseLM
from redx.adapters.methods import METHODS, MethodSettings, Shapes
from redx.errors import RedxError
from redx.io.hashing import hash_tensors
from redx.io.reading import is_file, is_folder, read_json
from redx.io.safetensors_files import open_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(?P<module>.+?)\.(?P<part>(lora|road|glora)_.+)")
ADVICE = "give a folder as PeftModel.save_pretrained writes it"
# settings that a mixed batch does not compute, that change more than the adapted matrices, or that need other weights
UNSUPPORTED = ("use_dora", "modules_to_save", "trainable_token_indices", "alora_invocation_tokens", "megatron_config")
UNSUPPORTED += ("target_parameters", "layer_replication", "arrow_config", "use_qalora", "kasa_config")
# initial weights that leave the base as it is
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class AdapterInfo:
    """What is known of a checked adapter.

    Attributes
    ----------
    hash
        Hash of its settings and tensors.
    method
        Method of peft, such as LORA.
    rank
        Largest rank of its matrices; None for a method without ranks.
    modules
        Names of the matrices that it adapts, without their blocks.
    parameters
        Number of its parameters.
    base
        Name of the base that peft wrote down.
    """

    hash: str
    method: str
    rank: int | None
    modules: tuple[str, ...]
    parameters: int
    base: str


def check_adapter(folder: Path, base: BaseLM) -> AdapterInfo:
    """Check the adapter in a folder against the base that it has to fit.

    Parameters
    ----------
    folder
        Folder with adapter_config.json and adapter_model.safetensors.
    base
        The base.

    Returns
    -------
    AdapterInfo
        What the adapter is.

    Raises
    ------
    RedxError
        If the folder is no adapter, holds only a pickle, or does not fit the base.
    """
    if not is_folder(folder):
        raise RedxError(f"There is no folder {folder}; {ADVICE}.")
    _check_files(folder)
    settings = read_json(folder / CONFIG, dict, misfit="holds no JSON object", advice=ADVICE, missing=ADVICE)
    method = str(settings.get("peft_type"))
    if method not in METHODS:
        raise RedxError(
            f"{folder} is an adapter of the kind {method[:40]!r}, which peft cannot choose per row of a batch; "
            f"give one of the kind {' or '.join(METHODS)}, or convert it with peft's save_as_lora where peft can."
        )
    if settings.get("auto_mapping") or settings.get("runtime_config"):
        raise RedxError(f"{folder / CONFIG} asks for code or a runtime of its own, which redx never runs; {ADVICE}.")
    for name in UNSUPPORTED:
        if settings.get(name):
            raise RedxError(f"{folder} uses {name}, which a mixed batch does not compute; train it without.")
    if settings.get("bias", "none") != "none":
        raise RedxError(f"{folder} trains biases, which a mixed batch does not switch; train it with bias='none'.")
    if settings.get("init_lora_weights", True) not in PLAIN_STARTS:
        raise RedxError(
            f"{folder} was initialised by {str(settings['init_lora_weights'])[:40]!r}, which changes the base as well; "
            "convert it to plain LoRA with peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
        )
    read: MethodSettings = read_json(
        folder / CONFIG, METHODS[method], misfit=f"does not hold settings of {method}", advice=ADVICE
    )
    tensors = _read_tensors(folder)
    adapted = _adapted_modules(folder, read, tensors)
    modules = dict(base.model.named_modules())
    ranks = [_check_shapes(folder, read, module, shapes, base, modules) for module, shapes in adapted.items()]
    kinds = {module.rpartition(".")[2] for module in adapted}
    _check_targets(folder, settings, kinds, modules)
    kept = {key: settings[key] for key in sorted(settings) if key not in ("base_model_name_or_path", "peft_version")}
    return AdapterInfo(
        hash=hash_tensors(tensors, repr(kept)),
        method=method,
        rank=max((rank for rank in ranks if rank is not None), default=None),
        modules=tuple(sorted(kinds)),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        base=str(settings.get("base_model_name_or_path") or ""),
    )


def _check_files(folder: Path) -> None:
    if is_file(folder / CONFIG) and is_file(folder / WEIGHTS):
        return
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
    if is_file(folder / CONFIG) and pickles:
        raise RedxError(
            f"{folder} has its weights only as {pickles[0]}, and unpickling runs whatever code is in it; "
            f"save the adapter again with safe_serialization=True."
        )
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        raise RedxError(f"{folder} is a whole model and not an adapter; give the folder of an adapter.")
    missing = WEIGHTS if is_file(folder / CONFIG) else CONFIG
    raise RedxError(f"There is no {missing} in {folder}; {ADVICE}.")


def _read_tensors(folder: Path) -> dict[str, Any]:
    path = folder / WEIGHTS
    with open_safetensors(path, advice=ADVICE) as file:
        if odd := [name for name, (dtype, _) in file.header.items() if dtype not in ("F32", "F16", "BF16")]:
            raise RedxError(f"{path} holds {odd[0][:80]!a} in another type than F32, F16 or BF16; {ADVICE}.")
        tensors = {name: file.get(name).float() for name in file.header}
    if not tensors:
        raise RedxError(f"{path} holds no tensors; {ADVICE}.")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise RedxError(f"{path} holds NaN or infinity in {name[:80]!a}; train the adapter again.")
    return tensors


def _adapted_modules(folder: Path, settings: MethodSettings, tensors: dict[str, Any]) -> dict[str, Shapes]:
    """Return the shapes of the tensors of every adapted module; tensors that only training reads are left out."""
    adapted: dict[str, Shapes] = {}
    for name, tensor in tensors.items():
        module, part = split_name(name)
        if part and part.partition(".")[0] not in settings.training_only.values():
            adapted.setdefault(module, {})[part] = tuple(tensor.shape)
        elif not part:
            raise RedxError(f"{folder / WEIGHTS} holds {name[:80]!a}, which is no tensor of an adapter; {ADVICE}.")
    return adapted


def split_name(name: str) -> tuple[str, str]:
    """Return the module that a tensor adapts, as the base names it, and which tensor of it this is; empty if neither.

    Examples
    --------
    >>> split_name("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight")
    ('model.layers.0.mlp.up_proj', 'lora_A.weight')
    """
    match = NAME.fullmatch(name)
    return (match["module"], match["part"]) if match else ("", "")


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _check_shapes(
    folder: Path, settings: MethodSettings, module: str, found: Shapes, base: BaseLM, modules: dict[str, Any]
) -> int | None:
    """Return the rank of an adapted module, or refuse tensors that do not fit the settings and the base."""
    target: Any = modules.get(module)
    target = target.get_base_layer() if hasattr(target, "get_base_layer") else target  # adapted by another one already
    if not isinstance(target, torch.nn.Linear):
        raise RedxError(
            f"{folder} adapts {module[:120]!a}, a linear layer which {base.name} does not have; "
            "it was trained on another model."
        )
    wanted = settings.shapes(module, target.out_features, target.in_features, target.bias is not None)
    if missing := [part for part in wanted if part not in found]:
        raise RedxError(f"{folder} lacks {missing[0]} of {module[:120]!a}; save the adapter anew.")
    for part, shape in found.items():
        if part not in wanted:
            raise RedxError(
                f"{folder} has {part[:80]!a} of {module[:120]!a}, which its settings do not name; {ADVICE}."
            )
        if shape != wanted[part]:
            raise RedxError(
                f"{folder} has {_size(shape)} values as {part} of {module[:120]!a}, but by its settings {base.name} "
                f"takes {_size(wanted[part])}; it was trained on another model, or its settings were changed."
            )
    return settings.rank(module)


def _check_targets(folder: Path, settings: dict[str, Any], adapted: set[str], modules: dict[str, Any]) -> None:
    """Refuse an adapter whose settings name modules that it has no weights for, or that the base does not have."""
    targets = settings.get("target_modules")
    if isinstance(targets, str):
        if targets != "all-linear" and len(targets) > 1000:
            raise RedxError(f"{folder / CONFIG} has too long a pattern of target_modules; {ADVICE}.")
        return
    if not isinstance(targets, list) or not targets or not all(isinstance(target, str) for target in targets):
        raise RedxError(f"{folder / CONFIG} names no target_modules; {ADVICE}.")
    known = {name.rpartition(".")[2] for name in modules}
    for target in targets:
        last = target.rpartition(".")[2]
        if last not in known:
            raise RedxError(
                f"{folder} adapts modules called {target[:80]!a}, which this base does not have; "
                "it was trained on another model."
            )
        if last not in adapted:
            raise RedxError(f"{folder} has no weights for its target module {target[:80]!a}; save the adapter anew.")
