"""Checks of an adapter folder from outside, as `PeftModel.save_pretrained` writes it, before peft reads it.

Only two files count: adapter_config.json and adapter_model.safetensors. Pickles are refused, and so is every setting
that would name code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redx.adapters.base import BaseLM
from redx.errors import RedxError
from redx.io.hashing import hash_tensors
from redx.io.reading import is_file, is_folder, read_json
from redx.io.safetensors_files import open_safetensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
SWITCHABLE = ("LORA",)  # methods of peft whose adapters can be chosen per row of a batch, and that redx has tested
ADVICE = "give a folder as PeftModel.save_pretrained writes it"
MAX_RANK = 4096
# LoRA settings that a mixed batch does not compute, or that change more than the adapted matrices
UNSUPPORTED = ("use_dora", "modules_to_save", "trainable_token_indices", "alora_invocation_tokens", "megatron_config")
UNSUPPORTED += ("target_parameters", "layer_replication", "arrow_config", "use_qalora", "use_bdlora")
PLAIN_STARTS = (True, False, None, "gaussian")  # initial weights that leave the base as it is
NAME = re.compile(r"(?P<module>.+)\.lora_(?P<side>A|B)\.weight")


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
        Largest rank of its matrices.
    modules
        Names of the matrices that it adapts, without their blocks.
    parameters
        Number of its parameters.
    base
        Name of the base that peft wrote down.
    """

    hash: str
    method: str
    rank: int
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
    if method not in SWITCHABLE:
        raise RedxError(
            f"{folder} is an adapter of the kind {method[:40]!r}, which cannot be chosen per row of a batch; "
            f"give one of the kind {' or '.join(SWITCHABLE)}."
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
    tensors = _read_tensors(folder)
    ranks = _check_shapes(folder, settings, tensors, base)
    kinds = {NAME.fullmatch(name)["module"].rpartition(".")[2] for name in tensors}  # type: ignore[index]
    kept = {key: settings[key] for key in sorted(settings) if key not in ("base_model_name_or_path", "peft_version")}
    return AdapterInfo(
        hash=hash_tensors(tensors, repr(kept)),
        method=method,
        rank=max(ranks),
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
        if not NAME.fullmatch(name):
            raise RedxError(f"{path} holds {name[:80]!a}, which is no matrix of LoRA; {ADVICE}.")
        if not bool(tensor.isfinite().all()):
            raise RedxError(f"{path} holds NaN or infinity in {name[:80]!a}; train the adapter again.")
    return tensors


def _check_shapes(folder: Path, settings: dict[str, Any], tensors: dict[str, Any], base: BaseLM) -> list[int]:
    """Return the rank of every adapted matrix, or refuse an adapter that does not fit the base."""
    modules = dict(base.model.named_modules())
    declared = settings.get("r")
    patterns = settings.get("rank_pattern") or {}
    if type(declared) is not int or not 1 <= declared <= MAX_RANK or not isinstance(patterns, dict):
        raise RedxError(f"{folder / CONFIG} names no rank r between 1 and {MAX_RANK}; {ADVICE}.")
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        match = NAME.fullmatch(name)
        assert match is not None
        pairs.setdefault(match["module"].removeprefix(PREFIX), {})[match["side"]] = tuple(tensor.shape)
    ranks = []
    for module, sides in pairs.items():
        target = modules.get(module)
        if target is None or getattr(target, "weight", None) is None:
            raise RedxError(
                f"{folder} adapts {module[:120]!a}, which {base.name} does not have; it was trained on another model."
            )
        if set(sides) != {"A", "B"} or any(len(shape) != 2 for shape in sides.values()):
            raise RedxError(f"{folder} lacks one of the two matrices of {module[:120]!a}; save the adapter anew.")
        rank, (outputs, inputs) = sides["A"][0], target.weight.shape
        if sides["B"][1] != rank or (not patterns and rank != declared):
            raise RedxError(
                f"{folder} has matrices of rank {rank} and {sides['B'][1]} for {module[:120]!a}, but its settings "
                f"say {declared}; save the adapter anew."
            )
        if (sides["B"][0], sides["A"][1]) != (outputs, inputs):
            raise RedxError(
                f"{folder} adapts {module[:120]!a} with {sides['B'][0]} x {sides['A'][1]} values, but {base.name} has "
                f"{outputs} x {inputs} there; it was trained on another model."
            )
        ranks.append(rank)
    _check_targets(folder, settings, {module.rpartition(".")[2] for module in pairs}, modules)
    return ranks


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
