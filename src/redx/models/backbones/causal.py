"""A whole causal language model with its tokenizer, loaded from a local folder without running code from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from redx.errors import RedxError
from redx.models.backbones.hub import model_folder, quiet_transformers, require_packages


def load_causal_model(name: str) -> tuple[Path, Any, Any]:
    """Load a causal language model in float32.

    Parameters
    ----------
    name
        An embedded model, a local folder or a name on the Hugging Face hub.

    Returns
    -------
    tuple
        Its folder, the model and its tokenizer.

    Raises
    ------
    RedxError
        If a package is missing, or the folder holds no complete causal language model as safetensors.
    """
    require_packages("transformers", "peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = model_folder(name)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
            )
    except Exception as error:  # transformers raises errors of many types for a damaged folder
        reason = " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
        raise RedxError(
            f"{folder} cannot be loaded as a causal language model ({reason}); give another folder."
        ) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):  # transformers would initialise them at random
        raise RedxError(f"The weights in {folder} lack {missing[0]}; give the folder of a causal language model.")
    model.generation_config = GenerationConfig()  # the folder's own may ask for sampling or penalties
    return folder, model, tokenizer
