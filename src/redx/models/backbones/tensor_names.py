"""Names of the tensors of pretrained language models: which belong to which block, and which do not belong to one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from redx.errors import RedxError
from redx.io.reading import TENSOR_BYTES, open_file
from redx.io.safetensors_files import open_safetensors

SUFFIX = ".safetensors"

# what may stand before the blocks in a name
FAMILIES = r"(?:backbone|base_model|base|model|encoder|transformer|bert|roberta|lm|llm|qwen)"

# a tensor of a block, of the final norm, of an output head or of the embeddings
BACKBONE = re.compile(
    rf"(?P<stack>(?:{FAMILIES}\.)*)(?:(?:layers?|h|blocks?)\.(?P<layer>\d+)\.(?P<inner>.+)"
    r"|(?P<norm>norm|ln_f|final_layer_norm|final_norm|norm_f)\.(?P<side>weight|bias)"
    r"|(?P<head>lm_head|pooler|cls)\..+"
    r"|(?P<words>embed_tokens|embed_positions|embeddings|wte|wpe|rotary_emb)\..+)"
)

# what parallel or compiled training puts before every name
WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")

# names that no pretrained model has
TRAINED = re.compile(
    rf"(?:{FAMILIES}\.)*(?:head|heads|classifier|experts?|router|gate|gates|gating|bus|residuals?|answers)(?:[_.]?\d+)?[._]"
    r"|.*[._](?:lora|adapter)s?[._].*"
)


def open_backbone(folder: Path, stack: ExitStack) -> dict[str, Callable[[], Tensor]]:
    """Return functions that read the tensors of a language model, by `backbone.` and the tensors' own names.

    The files stay open until `stack` is closed.
    """
    readers: dict[str, Callable[[], Tensor]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        file = stack.enter_context(
            open_safetensors(path, "is truncated or no safetensors file", "download the model anew")
        )
        readers |= {f"backbone.{name}": partial(file.get, name) for name in file.header}
    return readers


def hash_backbone_files(folder: Path) -> dict[str, str]:
    """Return a hash of every file of a language model by name, to show which file differs from another copy's."""
    hashes = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and re.fullmatch(r"(config|tokenizer.*|vocab)\.json|.+\.(safetensors|model|txt)", path.name):
            with open_file(path, TENSOR_BYTES, advice="download the model anew") as (file, _):
                short = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))  # type: ignore[arg-type]
            hashes[path.name] = short.hexdigest()
    return hashes


def layer_stack(names: Mapping[str, Any]) -> tuple[str, int]:
    """Return what precedes `layers` in the names of the blocks, and the number of blocks; ("", 0) without any."""
    depths: dict[str, int] = {}
    for name in names:
        match = locate_tensor(name)
        if match and match["layer"]:
            depths[match["stack"]] = max(depths.get(match["stack"], 0), int(match["layer"]) + 1)
    if len(depths) > 1:
        raise RedxError(
            f"There are several stacks of layers ({', '.join(sorted(depths)[:3])}); shrink them one by one."
        )
    return next(iter(depths.items()), ("", 0))


def locate_tensor(name: str) -> re.Match[str] | None:
    """Return the match of `BACKBONE` for a tensor of a pretrained model; None for any other tensor."""
    name = WRAPPERS.sub("", name)
    return None if ":" in name or TRAINED.match(name) else BACKBONE.fullmatch(name)
