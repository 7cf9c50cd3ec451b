"""Splits and data: digests, and the number of outputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from redx.data.dataset import Data, Split


def test_a_digest_changes_with_every_part_of_a_split() -> None:
    split = Split(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
    others = [
        replace(split, inputs=split.inputs + 1),
        replace(split, inputs=split.inputs.view(3, 1, 2)),
        replace(split, labels=split.domains, domains=split.labels),
    ]
    assert split.digest() == split.only(torch.arange(3)).digest()
    assert len({other.digest() for other in [split, *others]}) == 4


def test_a_regression_has_one_output() -> None:
    split = Split(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    data = Data(split, split, split, ("all",), (), "random", 0.0)
    assert data.outputs == 1
    assert replace(data, classes=("a", "b", "c")).outputs == 3
