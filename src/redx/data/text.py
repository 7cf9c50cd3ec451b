"""Texts as tensors: UTF-8 bytes padded with zeros, so that texts are split and hashed like any other input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor

PACKED_BYTES, PADDING = 2**28, 8  # what any texts may be packed into, and longer ones in all: so many times their size


def pack_texts(texts: Sequence[Any] | Tensor, limit: int = PACKED_BYTES) -> Tensor:
    """Return texts as rows of bytes.

    Parameters
    ----------
    texts
        A list of N strings that are not blank and contain no NUL character.
    limit
        Upper bound on the size of the result where most of it is padding, as with one long text among many short ones.

    Returns
    -------
    Tensor
        UTF-8 bytes of dtype uint8, (N, L), where L is the length of the longest text; shorter ones end with zeros.

    Raises
    ------
    RedxError
        Where the input is not a list of such strings, or they take far more memory when they are padded.

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
    if len(rows) * width > max(limit, PADDING * sum(map(len, rows))):
        raise RedxError(
            f"One of {len(rows):,} texts has {width:,} bytes, far more than the others, and all of them would take as "
            "much memory; shorten it or leave it out."
        )
    packed = bytearray(len(rows) * width)
    for start, row in zip(range(0, len(packed), width or 1), rows, strict=True):
        packed[start : start + len(row)] = row
    return torch.frombuffer(packed, dtype=torch.uint8).view(len(rows), width) if rows else torch.empty(0, 0).byte()


def unpack_texts(rows: Tensor) -> list[str]:
    """Return the texts that `pack_texts` gave as bytes, (N, L)."""
    return [bytes(row).rstrip(b"\0").decode(errors="surrogatepass") for row in rows.numpy()]
