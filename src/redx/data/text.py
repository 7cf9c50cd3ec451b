"""Texts as tensors: a row of UTF-8 bytes each, filled up with zeros, so that they split and hash like any input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


def pack_texts(texts: Sequence[Any] | Tensor) -> Tensor:
    """Texts to bytes, (N, L)."""
    import torch

    words: list[str] = [] if isinstance(texts, str) else [text for text in texts if isinstance(text, str)]
    if len(words) < len(texts):
        raise RedxError("This model reads texts; give a list of them, such as ['What is 37 plus 12?'].")
    for text in words:
        if not text.strip() or "\0" in text:
            raise RedxError(f"{text!r} is no text to read; write a question without NUL characters.")
    rows = [text.encode(errors="surrogatepass") for text in words]
    width = max(map(len, rows), default=0)
    packed = bytearray(b"".join(row.ljust(width, b"\0") for row in rows))
    return torch.frombuffer(packed, dtype=torch.uint8).view(len(rows), width) if rows else torch.empty(0, 0).byte()


def unpack_texts(rows: Tensor) -> list[str]:
    """The texts again."""
    return [bytes(row).rstrip(b"\0").decode(errors="surrogatepass") for row in rows.numpy()]
