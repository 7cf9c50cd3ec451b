"""One seed of a run as one file: exported whole, shrunk to what was trained, and evaluated again from either.

A checkpoint is a safetensors file. `backbone.NAME` are the tensors of the language model under its own names, of which
the trained top blocks carry the trained values; `FILE:NAME` are those of the seed's other files; `answers:RULE/BANK`
are what the run answered on its test split. Settings, JSON files and the backbone's fingerprint stand in its metadata.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from redx.errors import RedxError

SUFFIX = ".safetensors"


FAMILIES = r"(?:backbone|base_model|base|model|encoder|transformer|bert|roberta|lm|llm|qwen)"


BACKBONE = re.compile(
    rf"(?P<stack>(?:{FAMILIES}\.)*)(?:(?:layers?|h|blocks?)\.(?P<layer>\d+)\.(?P<inner>.+)"
    r"|(?P<norm>norm|ln_f|final_layer_norm|final_norm|norm_f)\.(?P<side>weight|bias)"
    r"|(?P<head>lm_head|pooler|cls)\..+"
    r"|(?P<words>embed_tokens|embed_positions|embeddings|wte|wpe|rotary_emb)\..+)"
)


WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")  # what parallel or compiled training puts before every name


TRAINED = re.compile(  # what never belongs to a pretrained model
    rf"(?:{FAMILIES}\.)*(?:head|heads|classifier|experts?|router|gate|gates|gating|bus|residuals?|answers)(?:[_.]?\d+)?[._]"
    r"|.*[._](?:lora|adapter)s?[._].*"
)


def open_backbone(folder: Path, stack: ExitStack) -> dict[str, Callable[[], Tensor]]:
    """All tensors of a language model, by `backbone.` and its own names; each is read when it is called for."""
    found: dict[str, Callable[[], Tensor]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = stack.enter_context(safe_open(path, "pt"))
            found |= {f"backbone.{name}": partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise RedxError(f"{path} is truncated or no safetensors file; take the model anew.") from error
    return found


def hash_backbone_files(folder: Path) -> dict[str, str]:
    """The hash of each file of a language model, to tell which of them differs."""
    sums = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and re.fullmatch(r"(config|tokenizer.*|vocab)\.json|.+\.(safetensors|model|txt)", path.name):
            with path.open("rb") as file:
                sums[path.name] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    return sums


def layer_stack(names: Mapping[str, Any]) -> tuple[str, int]:
    """The one stack of blocks among these names: what stands before `layers`, and how many it has."""
    found: dict[str, int] = {}
    for name in names:
        place = locate_tensor(name)
        if place and place["layer"]:
            found[place["stack"]] = max(found.get(place["stack"], 0), int(place["layer"]) + 1)
    if len(found) > 1:
        raise RedxError(f"There are several stacks of layers ({', '.join(sorted(found)[:3])}); shrink them one by one.")
    return next(iter(found.items()), ("", 0))


def locate_tensor(name: str) -> re.Match[str] | None:
    """Where in a pretrained model a tensor sits; None for any other."""
    name = WRAPPERS.sub("", name)
    return None if ":" in name or TRAINED.match(name) else BACKBONE.fullmatch(name)
