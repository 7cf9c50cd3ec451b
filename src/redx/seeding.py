"""Every random draw comes from a generator named after what it is for, so no stage can disturb another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator


def generator(seed: int, *purpose: object) -> Generator:
    """A generator that depends on the seed and the purpose alone, never on what was drawn before."""
    import torch

    text = "/".join(str(word) for word in (seed, *purpose))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    return torch.Generator().manual_seed(number)
