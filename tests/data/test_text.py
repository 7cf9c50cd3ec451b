"""Texts as rows of bytes."""

from __future__ import annotations

import pytest
import torch

from redx.data.text import pack_texts, unpack_texts
from redx.errors import RedxError

TEXTS = ["What is 37 plus 12?", "What is 4 minus 1?", "What is 4 minus 1?", "ä 10 − 3"]


def test_texts_come_back_from_their_bytes() -> None:
    assert unpack_texts(pack_texts(TEXTS)) == TEXTS
    assert pack_texts(TEXTS).dtype == torch.uint8
    for wrong in ([""], ["  "], ["a\0"], [3], "not a list"):
        with pytest.raises(RedxError):
            pack_texts(wrong)


def test_one_long_text_does_not_make_all_texts_as_long() -> None:
    assert pack_texts(["x" * 90, *"ab" * 5], limit=990).shape == (11, 90)
    with pytest.raises(RedxError, match="One of 11 texts has 90 bytes, far more than the others"):
        pack_texts(["x" * 90, *"ab" * 5], limit=980)
    assert pack_texts(["x" * 90] * 11, limit=1).shape == (11, 90)  # nothing of it is padding
