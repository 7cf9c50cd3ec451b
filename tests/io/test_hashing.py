"""Hashes of tensors and files."""

from __future__ import annotations

import torch

from redx.io import hashing


def test_other_tensors_or_words_have_another_hash() -> None:
    one = {"w": torch.zeros(3)}
    assert hashing.hash_tensors(one, "a") == hashing.hash_tensors({"w": torch.zeros(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors({"w": torch.ones(3)}, "a")
    assert hashing.hash_tensors(one, "a") != hashing.hash_tensors(one, "b")
