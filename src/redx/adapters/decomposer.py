"""The `lm` decomposer of a run of `steps` as an adapter folder of peft, so that it can stand in a library."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from redx.adapters.checking import NAME, WEIGHTS
from redx.errors import RedxError
from redx.io.files import write_tensors
from redx.io.reading import exists
from redx.io.safetensors_files import read_tensors
from redx.models.backbones.hub import require_packages
from redx.runs.folder import choose_seed

DEFAULT = ".default."  # peft's name of the adapter, which its files leave out


def export_decomposer(run: Path, folder: Path, seed: int | None = None) -> Path:
    """Write the decomposer of a run as `PeftModel.save_pretrained` would, and return the folder.

    Parameters
    ----------
    run
        A finished run of `steps` with `--decomposer lm`.
    folder
        The folder to write; it must not exist.
    seed
        Which seed of the run; the first by default.
    """
    config, seed = choose_seed(run, seed)
    if config.questions.decomposer != "lm":
        raise RedxError(
            f"{run} has no language model as its decomposer; make one with `redx run steps --decomposer lm`."
        )
    tensors = read_tensors(run / f"seed-{seed}" / "decomposer.safetensors")
    return write_peft(tensors, folder, config.backbone)


def write_peft(tensors: dict[str, Tensor], folder: Path, base: str) -> Path:
    """Write LoRA weights, named as in a PeftModel, as an adapter folder.

    Parameters
    ----------
    tensors
        What `LMDecomposer.tensors` returned for a decomposer that was trained with LoRA.
    folder
        The folder to write; it must not exist.
    base
        Name of the base that is written down.
    """
    require_packages("peft")
    from peft import LoraConfig

    plain = {name.replace(DEFAULT, "."): tensor for name, tensor in tensors.items()}
    matches = [NAME.fullmatch(name) for name in plain]
    if not plain or not all(matches):
        raise RedxError(
            "This decomposer was not trained with LoRA, so it is no adapter; train it again without blocks."
        )
    if exists(folder):
        raise RedxError(f"{folder} exists already; choose another folder.")
    ranks = {tensor.shape[0] for name, tensor in plain.items() if ".lora_A." in name}
    modules = sorted({match["module"].rpartition(".")[2] for match in matches if match})
    rank = max(ranks)
    write_tensors(folder / WEIGHTS, plain, {"format": "pt"})
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=modules, task_type="CAUSAL_LM", base_model_name_or_path=base
    )
    config.save_pretrained(str(folder))
    return folder
