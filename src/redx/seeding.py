"""Random generators by seed and purpose, so that a draw for one purpose never changes the draws for another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator


def generator(seed: int, *purpose: object) -> Generator:
    """Return a random generator that depends only on the seed and the purpose.

    Parameters
    ----------
    seed
        Seed of the run.
    purpose
        What the draws are for, such as `"noise", "swap", 0.5`; different purposes give independent generators.

    Returns
    -------
    torch.Generator
        A new generator on the CPU.

    Examples
    --------
    >>> generator(0, "noise").initial_seed() == generator(0, "noise").initial_seed()
    True
    >>> generator(0, "noise").initial_seed() == generator(0, "router").initial_seed()
    False
    """
    import torch

    text = "/".join(str(word) for word in (seed, *purpose))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    return torch.Generator().manual_seed(number)
