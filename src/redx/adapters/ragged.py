"""The cache of rows of different lengths: keys and values, padded on the left; rows come and go between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from redx.errors import RedxError


class RaggedCache:
    """The keys and values of all rows that are being continued.

    Attributes
    ----------
    lengths
        The number of tokens that every row has read.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._cache: Any = None

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths, default=0)

    def join(self, cache: Any, rows: int, length: int) -> None:
        """Add rows of equal length behind the others, with the cache of their own pass."""
        if self._cache is None:
            self._cache, self.lengths = cache, [length] * rows
            return
        width = max(self.width, length)
        for own, new in zip(self._cache.layers, cache.layers, strict=True):
            own.keys = torch.cat([_widened(own.keys, width), _widened(new.keys, width)])
            own.values = torch.cat([_widened(own.values, width), _widened(new.values, width)])
        self.lengths += [length] * rows

    def keep(self, rows: Sequence[int]) -> None:
        """Keep some rows, in this order; the padding that no row needs any more goes."""
        if list(rows) == list(range(len(self.lengths))):
            return
        before = self.width
        self.lengths = [self.lengths[row] for row in rows]
        if not rows:
            self._cache = None
            return
        index, spare = torch.tensor(rows), before - self.width
        for layer in self._cache.layers:
            index = index.to(layer.keys.device)
            layer.keys, layer.values = layer.keys[index, :, spare:], layer.values[index, :, spare:]

    def options(self, device: Any) -> dict[str, Any]:
        """Return the arguments of a pass over one more token of every row, and count it."""
        lengths = torch.tensor(self.lengths, device=device)
        width = self.width
        options: dict[str, Any] = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        if bool((lengths != width).any()):  # without padding the pass is that of a batch of its own, bit for bit
            places = torch.arange(width + 1, device=device)
            options["attention_mask"] = (places >= width - lengths[:, None]).long()  # (B, L + 1)
            options["position_ids"] = lengths[:, None]  # (B, 1)
        self.lengths = [length + 1 for length in self.lengths]
        return options


def check_cache(cache: Any, name: str) -> None:
    """Refuse a model that keeps something else of a text than keys and values of all its tokens."""
    from transformers.cache_utils import DynamicLayer

    if any(type(layer) is not DynamicLayer for layer in getattr(cache, "layers", [None])):
        raise RedxError(
            f"{name} keeps a window or a state of a text instead of all its tokens, so that its texts cannot share a "
            "batch; continue them with `redx generate`."
        )


def _widened(values: Tensor, width: int) -> Tensor:
    """Return keys or values of shape (B, H, T, D) padded on the left to T = width."""
    return pad(values, (0, 0, width - values.shape[2], 0))
