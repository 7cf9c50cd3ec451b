"""The frozen part of a language model, `h = pool(blocks_1..b(x))`, run once for each distinct text and kept."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from redx.errors import RedxError
from redx.io import hardware
from redx.io.cache import cache_folder
from redx.io.feature_cache import FeatureCache
from redx.io.progress import progress
from redx.models.backbones import hub
from redx.models.backbones.hub import hash_model, quiet_transformers, require_packages

if TYPE_CHECKING:
    from torch import Tensor, nn


Pooling = Literal["mean", "last", "both", "tokens"]


Precision = Literal["float32", "bfloat16", "float16"]


CHARACTERS = 2000  # of one text at most


UNREADABLE = re.compile("[\0\ud800-\udfff]")


TOKENS = 2048  # of one batch at most, unless one text alone has more


FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_norm", "norm_f")  # after the last block, as families name it


class FrozenLM:
    """The blocks of a model up to the highest one asked for; 0 is the embeddings, -1 the last block.

    A text becomes one row (the mean over its tokens, the last token, or both side by side) or one row a token.
    Several blocks stand side by side in the order given.
    """

    def __init__(
        self,
        folder: Path,
        blocks: tuple[int, ...],
        pooling: Pooling,
        precision: Precision = "float32",
        device: str = "cpu",
        longest: int | None = None,
    ) -> None:
        """`longest`: cut texts after so many tokens, or what the model reads; without it longer ones are refused."""
        self.folder, self.pooling, self.precision, self.device = folder, pooling, precision, device
        self.longest = longest
        self.config = _config(folder)
        depth = self.config.num_hidden_layers
        if not blocks or not all(-depth <= block <= depth for block in blocks):
            raise RedxError(
                f"{folder.name} has no blocks {blocks}; choose one or more of 1..{depth}, or 0 for its embeddings."
            )
        self.blocks = tuple(block + depth + 1 if block < 0 else block for block in blocks)
        self.forwards = 0  # texts that went through the model

    @property
    def width(self) -> int:
        """Features a row."""
        return self.config.hidden_size * len(self.blocks) * (2 if self.pooling == "both" else 1)

    @cached_property
    def cache(self) -> FeatureCache:
        """What was read before, by this or any other process."""
        mark = hash_model(self.folder)
        facts = {
            "backbone": self.folder.name,
            "fingerprint": mark,
            "blocks": list(self.blocks),
            "pooling": self.pooling,
            "precision": self.precision,
        }
        name = f"{mark}-b{'.'.join(map(str, self.blocks))}-{self.pooling}-{self.precision}"
        if self.longest:
            facts["tokens"], name = self.longest, f"{name}-t{self.longest}"
        return FeatureCache(cache_folder() / "features" / name, self.width, facts)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's own."""
        from transformers import AutoTokenizer

        try:
            with quiet_transformers():
                return AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers has no error of its own for a damaged folder
            raise _unloadable(self.folder, "tokenizer", error) from error

    @cached_property
    def model(self) -> nn.Module:
        """The blocks needed and no others, loaded at first use: a run whose features are all kept never comes here."""
        from transformers import AutoModel

        hardware.check_precision(self.precision, self.device)
        config, depth = copy.deepcopy(self.config), self.config.num_hidden_layers
        needed = max(1, *self.blocks)
        for key, value in list(vars(config).items()):  # such as layer_types
            if isinstance(value, list) and len(value) == depth:
                setattr(config, key, value[:needed])
        config.num_hidden_layers = needed
        config.use_cache = False
        try:
            with quiet_transformers():
                model, report = AutoModel.from_pretrained(
                    self.folder,
                    config=config,
                    dtype=getattr(torch, self.precision),
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
            model = model.to(self.device).eval()
        except Exception as error:  # as above
            raise _unloadable(self.folder, "model", error) from error
        # what is missing would be drawn at random; a pooler is not read
        if lacking := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
            raise RedxError(f"The weights in {self.folder} lack {lacking[0]}; take the folder anew from its source.")
        for name in FINAL_NORMS:  # it belongs to the head: a block's output is raw, the last one's too
            if isinstance(getattr(model, name, None), torch.nn.Module):
                setattr(model, name, torch.nn.Identity())
        return model

    def encode(self, texts: Sequence[str]) -> Iterator[list[tuple[str, Tensor]]]:
        """Run texts through the model: batches of texts with their rows, (1, D) or (T, D), in float32.

        A batch holds texts of one length, so nothing is ever padded. Batches are cut in a fixed order: what a killed
        encoding has left over falls into the same batches, and so ends with the same bits.
        """

        groups: dict[int, list[tuple[str, list[int]]]] = {}
        for text, tokens in zip(texts, self._tokens(texts), strict=True):
            groups.setdefault(len(tokens), []).append((text, tokens))
        for length, group in sorted(groups.items()):
            size = max(1, TOKENS // length)
            for at in range(0, len(group), size):
                batch = group[at : at + size]
                rows = self._run(torch.tensor([tokens for _, tokens in batch]))
                self.forwards += len(batch)
                yield [(text, each) for (text, _), each in zip(batch, rows, strict=True)]

    def prepare(self, texts: Sequence[str]) -> None:
        """Encode the texts that were never read before, and keep them."""
        _check(texts)
        if missing := self.cache.missing(texts):
            with progress("reading questions", len(missing)) as forward:

                def batches() -> Iterator[list[tuple[str, Tensor]]]:
                    for batch in self.encode(missing):
                        yield batch
                        forward(len(batch))

                self.cache.add(batches())

    def read(self, texts: Sequence[str]) -> Tensor:
        """The texts' features, (N, D), or (N, T, D) with rows of zeros after a text's last token.

        What is not kept yet is computed and not kept: see `prepare`.
        """

        _check(texts)
        fresh = {text: rows for batch in self.encode(self.cache.missing(texts)) for text, rows in batch}
        kept = [text for text in texts if text not in fresh]
        rows, counts = self.cache.get(kept)
        if fresh:
            known = dict(zip(kept, rows.split(counts.tolist()), strict=True)) | fresh
            rows = torch.cat([known[text] for text in texts])
            counts = torch.tensor([len(known[text]) for text in texts])
        if self.pooling != "tokens":
            return rows
        longest = int(counts.max()) if len(counts) else 0
        out = torch.zeros(len(texts), longest, self.width)  # (N, T, D)
        out[torch.arange(longest) < counts[:, None]] = rows
        return out

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        _check(texts)
        if not texts:
            return []
        limit = min(getattr(self.config, "max_position_embeddings", None) or 10**9, self.tokenizer.model_max_length)
        # a tokenizer file may ask for cutting and filling up: we fill up never, and cut only when told to
        cut: dict[str, Any] = {"truncation": False}
        if self.longest:
            cut = {"truncation": True, "max_length": min(limit, self.longest)}
        found = self.tokenizer(list(texts), padding=False, **cut)["input_ids"]
        for text, tokens in zip(texts, found, strict=True):
            if len(tokens) > limit:
                raise RedxError(
                    f"{_quote(text)} has {len(tokens)} tokens, but {self.folder.name} reads {limit}; cut it."
                )
            if not tokens:
                raise RedxError(f"{_quote(text)} has no tokens for {self.folder.name}; write it in other characters.")
        return found

    def _run(self, tokens: Tensor) -> Tensor:
        """One batch without padding, (N, T), to its rows, (N, 1 or T, D)."""

        with torch.inference_mode():
            states = self.model(input_ids=tokens.to(self.device), output_hidden_states=True).hidden_states
        # outside of inference mode: what follows can be trained on
        rows = torch.cat([states[block].float().cpu() for block in self.blocks], dim=-1)  # (N, T, D)
        mean, last = rows.mean(1, keepdim=True), rows[:, -1:]
        pooled = {"mean": [mean], "last": [last], "both": [mean, last], "tokens": [rows]}
        return torch.cat(pooled[self.pooling], dim=-1)


def _config(folder: Path) -> Any:
    require_packages("transformers")
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as above
        raise _unloadable(folder, "config.json", error) from error
    sizes = [getattr(config, key, None) for key in ("num_hidden_layers", "hidden_size")]
    if config.is_encoder_decoder or not all(isinstance(size, int) for size in sizes):
        raise RedxError(f"{folder} is no plain text model ({config.model_type}); give a decoder or an encoder of text.")
    return config


def _unloadable(folder: Path, what: str, error: Exception) -> RedxError:
    why = " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
    return RedxError(f"The {what} in {folder} cannot be loaded ({why}); give a folder as `save_pretrained` writes it.")


def _check(texts: Sequence[str]) -> None:
    """Refuse what no model can read."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise RedxError(f"{text!r} is no text; write something to read.")
        if len(text) > CHARACTERS:
            raise RedxError(
                f"{_quote(text)} has {len(text):,} characters, but at most {CHARACTERS:,} are read; cut it."
            )
        if UNREADABLE.search(text):
            raise RedxError(f"{_quote(text)} has a NUL or half a character (a lone surrogate) in it; remove it.")


def _quote(text: str) -> str:
    return ascii(text[:40] + ("…" if len(text) > 40 else ""))


@functools.lru_cache(maxsize=2)
def load_lower_half(backbone: str) -> FrozenLM:
    """The lower half of a language model, frozen; what is general about a text is known there."""
    folder = hub.model_folder(backbone)
    depth = FrozenLM(folder, (0,), "mean").config.num_hidden_layers
    return FrozenLM(folder, (math.ceil(depth / 2),), "mean")
