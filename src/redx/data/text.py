"""Texts as tensors: UTF-8 bytes padded with zeros, so that texts are split and hashed like any other input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


def pack_texts(texts: Sequence[Any] | Tensor) -> Tensor:
    """Return texts as rows of bytes.

    Parameters
    ----------
    texts
        A list of N strings that are not blank and contain no NUL character.

    Returns
    -------
    Tensor
        UTF-8 bytes of dtype uint8, (N, L), where L is the length of the longest text; shorter ones end with zeros.

    Raises
    ------
    RedxError
        Where the input is not a list of such strings.

    Examples
    --------
    >>> pack_texts(["ab", "c"])
    tensor([[97, 98],
            [99,  0]], dtype=torch.uint8)
    """
    import torch

    strings: list[str] = [] if isinstance(texts, str) else [text for text in texts if isinstance(text, str)]
    if len(strings) < len(texts):
        raise RedxError("This model reads texts; give a list of them, such as ['What is 37 plus 12?'].")
    for text in strings:
        if not text.strip() or "\0" in text:
            raise RedxError(f"{text!r} is no text to read; write a question without NUL characters.")
    rows = [text.encode(errors="surrogatepass") for text in strings]
    width = max(map(len, rows), default=0)
    packed = bytearray(b"".join(row.ljust(width, b"\0") for row in rows))
    return torch.frombuffer(packed, dtype=torch.uint8).view(len(rows), width) if rows else torch.empty(0, 0).byte()


def unpack_texts(rows: Tensor) -> list[str]:
    """Return the texts that `pack_texts` gave as bytes, (N, L)."""
    return [bytes(row).rstrip(b"\0").decode(errors="surrogatepass") for row in rows.numpy()]
