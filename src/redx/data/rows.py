"""Hashes of rows of features, by which the same examples are recognised on other machines."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from redx.seeding import generator

DIRECTIONS = 16  # that features are projected on before they are hashed
STEP = 0.05  # of the projections: rounding differences of another machine are 1,000 times smaller


def hash_rows(features: Tensor, salt: str) -> Tensor:
    """Return one hash for each row of features, which another machine gives to nearly all of the same rows.

    A row is projected on a few random directions and rounded, so that the last bits do not matter.

    Parameters
    ----------
    features
        Standardised features, (N, E).
    salt
        What the hashes belong to, such as the hash of a base's weights; other bases give other hashes.

    Returns
    -------
    Tensor
        Whole numbers of 64 bits, (N,).

    Examples
    --------
    >>> h = torch.eye(3)
    >>> bool((hash_rows(h, "a") == hash_rows(h + 1e-7, "a")).all())
    True
    """
    width = features.shape[1]
    directions = torch.randn(width, DIRECTIONS, generator=generator(0, "row hashes"), dtype=torch.double)
    projected = features.double() @ (directions / width**0.5)
    rounded = (projected / STEP).nan_to_num().clamp(-(2**30), 2**30).round().to(torch.int32).numpy()
    key = hashlib.sha256(salt.encode()).digest()
    hashes = [hashlib.blake2b(row.tobytes(), key=key, digest_size=8).digest() for row in rounded]
    return torch.tensor([int.from_bytes(value, "little", signed=True) for value in hashes], dtype=torch.int64)
