"""The frozen part of a pretrained language model: texts to hidden states, computed once per text and cached."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from redx.errors import RedxError
from redx.io import hardware
from redx.io.cache import cache_folder
from redx.io.feature_cache import FeatureCache
from redx.io.progress import progress
from redx.models.backbones import hub
from redx.models.backbones.hub import hash_model, quiet_transformers, require_packages
from redx.models.backbones.runtimes import MARKS, Runtime, States, build_states, check_runtime

Pooling = Literal["mean", "last", "both", "tokens"]
Precision = Literal["float32", "bfloat16", "float16"]
MAX_CHARACTERS = 2000  # of one text
UNREADABLE = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates
OPTIONAL_POOLERS = ("bert", "roberta", "xlm-roberta")  # kinds of models that run without their pooler
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_norm", "norm_f")  # names of the norm after the last block


class FrozenLM:
    """The lower blocks of a language model, up to the highest block whose hidden states are read.

    Parameters
    ----------
    folder
        Folder of the model, as `save_pretrained` writes it.
    blocks
        Blocks whose hidden states are read: 0 is the embeddings, 1 the first block, -1 the last block. The states of
        several blocks are concatenated in this order.
    pooling
        `mean` over the tokens of a text, its `last` token, `both` concatenated, or `tokens`: one row per token.
    precision
        Precision of the weights; features are returned in float32.
    device
        Where the model runs.
    max_tokens
        Truncate longer texts to this many tokens. Without it, texts longer than the model can read are refused.
    batch_tokens
        Upper bound on the tokens of a batch; a text that has more forms a batch of its own.
    runtime
        What runs the model: `torch`, `onnx` (ONNX Runtime with the same weights) or `int8` (torch with linear layers in
        integers of eight bits). Features of different runtimes are cached apart.

    Attributes
    ----------
    encoded_texts
        Number of texts that have gone through the model; texts from the cache do not count.
    """

    def __init__(
        self,
        folder: Path,
        blocks: tuple[int, ...],
        pooling: Pooling,
        precision: Precision = "float32",
        device: str = "cpu",
        max_tokens: int | None = None,
        batch_tokens: int = 2048,
        runtime: Runtime = "torch",
    ) -> None:
        check_runtime(runtime, precision, device)
        self.runtime: Runtime = runtime
        self.folder, self.pooling, self.precision, self.device = folder, pooling, precision, device
        self.max_tokens, self.batch_tokens = max_tokens, batch_tokens
        depth, self.hidden_size = _read_sizes(folder)
        if not blocks or not all(-depth <= block <= depth for block in blocks):
            raise RedxError(
                f"{folder.name} has no blocks {blocks}; choose one or more of 1..{depth}, or 0 for its embeddings."
            )
        self.blocks = tuple(block + depth + 1 if block < 0 else block for block in blocks)
        self.encoded_texts = 0

    @property
    def width(self) -> int:
        """Number of features of a row."""
        return self.hidden_size * len(self.blocks) * (2 if self.pooling == "both" else 1)

    @cached_property
    def config(self) -> Any:
        """The configuration of the model; it is read on first use, since importing transformers takes seconds."""
        return _load_config(self.folder)

    @cached_property
    def cache(self) -> FeatureCache:
        """The features of texts that this or another process has prepared with the same model and settings."""
        fingerprint = hash_model(self.folder)
        info = {
            "backbone": self.folder.name,
            "fingerprint": fingerprint,
            "blocks": list(self.blocks),
            "pooling": self.pooling,
            "precision": self.precision,
        }
        name = f"{fingerprint}-b{'.'.join(map(str, self.blocks))}-{self.pooling}-{self.precision}"
        if self.max_tokens:
            info["tokens"], name = self.max_tokens, f"{name}-t{self.max_tokens}"
        if self.runtime != "torch":
            info["runtime"] = mark = MARKS.get(self.runtime, self.runtime)
            name = f"{name}-{mark}"
        return FeatureCache(cache_folder() / "features" / name, self.width, info)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model, loaded on first use."""
        require_packages("transformers")
        from transformers import AutoTokenizer

        try:
            with quiet_transformers():
                return AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises errors of many types for a damaged folder
            raise _cannot_load(self.folder, "tokenizer", error) from error

    @cached_property
    def model(self) -> nn.Module:
        """The blocks that are needed, loaded on first use; with all features cached they are never loaded."""
        from transformers import AutoModel

        hardware.check_precision(self.precision, self.device)
        try:
            with quiet_transformers():
                model, report = AutoModel.from_pretrained(
                    self.folder,
                    config=self._shortened_config(),
                    dtype=getattr(torch, self.precision),
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
            model = model.to(self.device).eval()
        except Exception as error:  # transformers raises errors of many types for a damaged folder
            raise _cannot_load(self.folder, "model", error) from error
        # transformers initialises missing weights at random; those of the pooler are not used
        if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
            raise RedxError(f"The weights in {self.folder} lack {missing[0]}; take the folder anew from its source.")
        for name in FINAL_NORMS:  # the final norm belongs to the head: states are read before it, in every block
            if isinstance(getattr(model, name, None), nn.Module):
                setattr(model, name, nn.Identity())
        if self.config.model_type in OPTIONAL_POOLERS:
            model._modules["pooler"] = None  # its output is not read
        return model

    @cached_property
    def states(self) -> States:
        """The function from tokens, (N, T), to the states of the blocks, (N, T, D·B), in the chosen runtime."""
        return build_states(self.model, self.blocks, self.runtime, self.device)

    def _shortened_config(self) -> Any:
        """Return the configuration of the model with only the blocks that are needed."""
        config, depth = copy.deepcopy(self.config), self.config.num_hidden_layers
        needed = max(1, *self.blocks)
        for key, value in list(vars(config).items()):  # lists with one entry per block, such as layer_types
            if isinstance(value, list) and len(value) == depth:
                setattr(config, key, value[:needed])
        config.num_hidden_layers = needed
        config.use_cache = False
        return config

    def encode(self, texts: Sequence[str]) -> Iterator[list[tuple[str, Tensor]]]:
        """Run texts through the model.

        All texts of a batch have the same number of tokens, so that nothing is padded. The same texts are always
        divided into the same batches, so that an interrupted encoding ends with the same bits when it is repeated.

        Parameters
        ----------
        texts
            Texts of at most 2,000 characters.

        Yields
        ------
        list of (str, Tensor)
            The texts of one batch with their rows in float32: (1, D), or (T, D) with the pooling `tokens`.
        """
        texts_by_length: dict[int, list[tuple[str, list[int]]]] = {}
        for text, tokens in zip(texts, self._tokenise(texts), strict=True):
            texts_by_length.setdefault(len(tokens), []).append((text, tokens))
        for length, group in sorted(texts_by_length.items()):
            batch_size = max(1, self.batch_tokens // length)
            for start in range(0, len(group), batch_size):
                batch = group[start : start + batch_size]
                rows = self._forward(torch.tensor([tokens for _, tokens in batch]))
                self.encoded_texts += len(batch)
                yield [(text, text_rows) for (text, _), text_rows in zip(batch, rows, strict=True)]

    def prepare(self, texts: Sequence[str]) -> None:
        """Encode the texts that are not in the cache yet, and add them to it."""
        _check_texts(texts)
        if missing := self.cache.missing(texts):
            with progress("encoding texts", len(missing)) as advance:

                def batches() -> Iterator[list[tuple[str, Tensor]]]:
                    for batch in self.encode(missing):
                        yield batch
                        advance(len(batch))

                self.cache.add(batches())

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return the features of texts; texts that are not in the cache are encoded and not added to it.

        Parameters
        ----------
        texts
            Texts of at most 2,000 characters.

        Returns
        -------
        Tensor
            Features of shape (N, D). With the pooling `tokens` of shape (N, T, D), with zeros after the last token of a
            text.
        """
        _check_texts(texts)
        encoded = {text: rows for batch in self.encode(self.cache.missing(texts)) for text, rows in batch}
        cached = [text for text in texts if text not in encoded]
        rows, counts = self.cache.get(cached) if cached or not encoded else (torch.empty(0), torch.empty(0).long())
        if encoded:
            rows_by_text = (dict(zip(cached, rows.split(counts.tolist()), strict=True)) if cached else {}) | encoded
            rows = torch.cat([rows_by_text[text] for text in texts])
            counts = torch.tensor([len(rows_by_text[text]) for text in texts])
        if self.pooling != "tokens":
            return rows
        longest = int(counts.max()) if len(counts) else 0
        features = torch.zeros(len(texts), longest, self.width)  # (N, T, D)
        features[torch.arange(longest) < counts[:, None]] = rows
        return features

    def _tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        _check_texts(texts)
        if not texts:
            return []
        limit = min(getattr(self.config, "max_position_embeddings", None) or 10**9, self.tokenizer.model_max_length)
        # The file of a tokenizer may ask for truncation and padding: neither is done unless `max_tokens` is given.
        truncation: dict[str, Any] = {"truncation": False}
        if self.max_tokens:
            truncation = {"truncation": True, "max_length": min(limit, self.max_tokens)}
        token_lists = self.tokenizer(list(texts), padding=False, **truncation)["input_ids"]
        for text, tokens in zip(texts, token_lists, strict=True):
            if len(tokens) > limit:
                raise RedxError(
                    f"{_quote(text)} has {len(tokens)} tokens, but {self.folder.name} reads {limit}; cut it."
                )
            if not tokens:
                raise RedxError(f"{_quote(text)} has no tokens for {self.folder.name}; write it in other characters.")
        return token_lists

    def _forward(self, tokens: Tensor) -> Tensor:
        """Return the rows of a batch without padding: tokens (N, T) to (N, 1, D), or (N, T, D) by token."""
        rows = self.states(tokens)  # (N, T, D); pooled outside of inference mode, so that others can be trained on it
        mean, last = rows.mean(1, keepdim=True), rows[:, -1:]
        pooled = {"mean": [mean], "last": [last], "both": [mean, last], "tokens": [rows]}
        return torch.cat(pooled[self.pooling], dim=-1)


def _read_sizes(folder: Path) -> tuple[int, int]:
    """Return the number of blocks and the width of a model: from config.json itself, or where it has other names."""
    entries = hub.read_json_object(folder / "config.json")
    sizes = [entries.get(key) for key in ("num_hidden_layers", "hidden_size")]
    if not all(type(size) is int and size > 0 for size in sizes) or entries.get("is_encoder_decoder"):
        config = _load_config(folder)
        sizes = [config.num_hidden_layers, config.hidden_size]
    return sizes[0], sizes[1]  # type: ignore[return-value]


def _load_config(folder: Path) -> Any:
    require_packages("transformers")
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many types for a damaged folder
        raise _cannot_load(folder, "config.json", error) from error
    sizes = [getattr(config, key, None) for key in ("num_hidden_layers", "hidden_size")]
    if config.is_encoder_decoder or not all(isinstance(size, int) for size in sizes):
        raise RedxError(f"{folder} is no plain text model ({config.model_type}); give a decoder or an encoder of text.")
    return config


def _cannot_load(folder: Path, part: str, error: Exception) -> RedxError:
    reason = " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
    return RedxError(
        f"The {part} in {folder} cannot be loaded ({reason}); give a folder as `save_pretrained` writes it."
    )


def _check_texts(texts: Sequence[str]) -> None:
    """Refuse texts that are empty, too long, or hold characters that no tokenizer can read."""
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise RedxError(f"{text!r} is no text; write something to read.")
        if len(text) > MAX_CHARACTERS:
            raise RedxError(
                f"{_quote(text)} has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are read; cut it."
            )
        if UNREADABLE.search(text):
            raise RedxError(f"{_quote(text)} has a NUL or half a character (a lone surrogate) in it; remove it.")


def _quote(text: str) -> str:
    """Return the beginning of a text in quotes and in ASCII, for error messages."""
    return ascii(text[:40] + ("…" if len(text) > 40 else ""))


@functools.lru_cache(maxsize=2)
def load_lower_half(backbone: str) -> FrozenLM:
    """Return the lower half of a language model, whose mean states suit tasks in general; for the estimator.

    Parameters
    ----------
    backbone
        Name or folder of the model, as `model_folder` takes it.

    Returns
    -------
    FrozenLM
        The model up to its middle block, with the mean over tokens.
    """
    folder = hub.model_folder(backbone)
    depth = FrozenLM(folder, (0,), "mean").config.num_hidden_layers
    return FrozenLM(folder, (math.ceil(depth / 2),), "mean")
