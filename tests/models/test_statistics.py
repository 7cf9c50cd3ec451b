"""Statistics of owners: their sum is the pooled ridge, in any order, and each owner can leave."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from redx.errors import RedxError
from redx.models.statistics import FeatureMap, Statistics, add_up, collect, fit_head, solve

CLASSES = ("a", "b", "c", "d")


def examples(seed: int = 0, count: int = 240) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    h = torch.randn(count, 6, generator=draw)
    return h, h[:, :4].argmax(1)


def owners_of(h: Tensor, labels: Tensor, map: FeatureMap) -> dict[str, Statistics]:
    groups = {"east": (0, 1), "north": (2,), "west": (3,)}
    rows = {name: torch.isin(labels, torch.tensor(own)) for name, own in groups.items()}
    return {name: collect(map, h[own], labels[own], CLASSES) for name, own in rows.items()}


@pytest.mark.parametrize("size", [0, 40])
def test_the_sum_is_the_pooled_ridge_of_scikit_learn(size: int) -> None:
    h, labels = examples()
    map = FeatureMap(6, size, seed=3)
    total = add_up(owners_of(h, labels, map), CLASSES)
    unit = float(total.gram.diagonal().mean())
    ridge = Ridge(alpha=0.01 * unit, fit_intercept=False, solver="cholesky")
    ridge.fit(map(h).double().numpy(), np.eye(4)[labels.numpy()])
    np.testing.assert_allclose(solve(total, 0.01).numpy(), ridge.coef_.T, atol=1e-6)
    assert total.examples == len(h)


def test_order_of_owners_does_not_matter_and_removal_restores_every_bit() -> None:
    owners = owners_of(*examples(), FeatureMap(6, 40))
    expected = add_up(owners, CLASSES)
    for order in itertools.permutations(owners):
        total = add_up({name: owners[name] for name in order}, CLASSES)
        assert torch.equal(total.gram, expected.gram)
        assert torch.equal(total.moments, expected.moments)
    more = owners | {"south": collect(FeatureMap(6, 40), *examples(1), CLASSES)}
    assert not torch.equal(add_up(more, CLASSES).gram, expected.gram)
    more.pop("south")
    assert torch.equal(add_up(more, CLASSES).gram, expected.gram)


def test_new_classes_get_columns() -> None:
    owners = owners_of(*examples(), FeatureMap(6, 40))
    known = {name: owners[name] for name in ("east", "north")}
    assert not solve(add_up(known, CLASSES), 0.01)[:, 3].any()
    h, labels = examples(2)
    head = fit_head(add_up(owners, CLASSES), h, labels)
    assert float((head(h).argmax(-1) == labels).double().mean()) > 0.8


def test_what_is_saved_is_read_again() -> None:
    own = owners_of(*examples(), FeatureMap(6, 40, seed=5))["east"]
    again = Statistics.from_tensors(own.tensors(), own.describe())
    assert (again.map, again.classes, again.examples) == (own.map, own.classes, own.examples)
    torch.testing.assert_close(again.gram, own.gram, rtol=1e-6, atol=1e-6)
    stored = Statistics.from_tensors(again.tensors(), again.describe())
    assert torch.equal(stored.gram, again.gram)  # rounded once


def test_bad_statistics_are_refused() -> None:
    own = owners_of(*examples(), FeatureMap(6, 8))["east"]
    tensors, about = own.tensors(), own.describe()

    def refuse(words: str, tensors: dict[str, Tensor] = tensors, about: dict[str, Any] = about) -> None:
        with pytest.raises(RedxError, match=words):
            Statistics.from_tensors(tensors, about)

    refuse("has not the shape", {**tensors, "gram": tensors["gram"][:-1]})
    refuse("has not the shape", {name: value for name, value in tensors.items() if name != "moments"})
    refuse("has not the shape", about={**about, "size": 9})
    refuse("NaN or infinity", {**tensors, "moments": tensors["moments"] * float("nan")})
    refuse("count no examples", {**tensors, "counts": 0 * tensors["counts"]})
    refuse("count no examples", {**tensors, "counts": -tensors["counts"]})
    refuse("a class twice", about={**about, "classes": ["a", "a"]})
    refuse("no sums of examples", {**tensors, "gram": -tensors["gram"]})
    refuse("no sums of examples", {**tensors, "moments": 1e3 * tensors["moments"]})
    twisted = tensors["gram"].clone()
    twisted[1] = 10 * twisted[0]
    refuse("not positive semidefinite", {**tensors, "gram": twisted})
    with pytest.raises(RedxError, match="another feature map"):
        add_up({"east": own, "west": owners_of(*examples(), FeatureMap(6, 8, seed=1))["west"]}, CLASSES)
    with pytest.raises(RedxError, match="which is not known here"):
        add_up({"east": own}, ("a",))
    with pytest.raises(RedxError, match="There are no examples"):
        collect(own.map, torch.zeros(0, 6), torch.zeros(0).long(), CLASSES)
    with pytest.raises(RedxError, match="no statistics to add up"):
        add_up({}, CLASSES)
