"""Statistics of owners: their sum is the pooled ridge, in any order, and each owner can leave."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from redx.config import StatisticsConfig
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.models.feature_map import FeatureMap
from redx.models.ridge_head import DESCRIPTION, FILE, TEMPERATURES, Held, StatisticsPool, fit_head, read_head, solve
from redx.models.statistics import Statistics, add_up, collect, read_statistics, without_shared

CLASSES = ("a", "b", "c", "d")


def examples(seed: int = 0, count: int = 240) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    h = torch.randn(count, 6, generator=draw)
    return h, h[:, :4].argmax(1)


def as_split(h: Tensor, labels: Tensor) -> Split:
    return Split(h, labels, torch.full_like(labels, -1))


def base_of(width: int) -> Base:
    weight = torch.randn(width, 4, generator=torch.Generator().manual_seed(7))
    return Base(IdentityEncoder(), weight, torch.zeros(4), torch.zeros(width), torch.ones(width))


def guided_map(width: int = 6, size: int = 40) -> FeatureMap:
    return FeatureMap.create(StatisticsConfig(size=size), base_of(width))


def owners_of(h: Tensor, labels: Tensor, map: FeatureMap) -> dict[str, Statistics]:
    groups = {"east": (0, 1), "north": (2,), "west": (3,)}
    rows = {name: torch.isin(labels, torch.tensor(own)) for name, own in groups.items()}
    return {name: collect(map, h[own], labels[own], CLASSES) for name, own in rows.items()}


@pytest.mark.parametrize("map", [FeatureMap(6, 0, seed=3), FeatureMap(6, 40, seed=3), guided_map()])
def test_the_sum_is_the_pooled_ridge_of_scikit_learn(map: FeatureMap) -> None:
    h, labels = examples()
    total = add_up(owners_of(h, labels, map), CLASSES)
    unit = float(total.gram.diagonal().mean())
    ridge = Ridge(alpha=0.01 * unit, fit_intercept=False, solver="cholesky")
    ridge.fit(map(h).double().numpy(), np.eye(4)[labels.numpy()])
    np.testing.assert_allclose(solve(total, 0.01).numpy(), ridge.coef_.T, atol=1e-6)
    assert total.examples == len(h)
    stored = add_up({name: own.rounded() for name, own in owners_of(h, labels, map).items()}, CLASSES)
    np.testing.assert_allclose(solve(stored, 0.01).numpy(), ridge.coef_.T, atol=1e-5)  # as files hold them


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
    head = fit_head(add_up(owners, CLASSES), Held(as_split(h, labels)))
    assert float((head(h).argmax(-1) == labels).double().mean()) > 0.8
    without = fit_head(add_up(known, CLASSES), Held(as_split(h, labels)))
    assert without.missing == (3,)
    logits = without(h)
    assert torch.equal(logits[:, 3], logits[:, :3].amin(-1) - 1)  # a class without examples lies below all others


def test_what_is_saved_is_read_again() -> None:
    own = owners_of(*examples(), FeatureMap(6, 40, seed=5))["east"]
    again = Statistics.from_tensors(own.tensors(), own.describe())
    assert (again.map, again.classes, again.examples) == (own.map, own.classes, own.examples)
    torch.testing.assert_close(again.gram, own.gram, rtol=1e-6, atol=1e-6)
    stored = Statistics.from_tensors(again.tensors(), again.describe())
    assert torch.equal(stored.gram, again.gram)  # rounded once


def test_files_hold_what_was_saved(tmp_path: Path) -> None:
    own = owners_of(*examples(), guided_map())["east"]
    own.save(tmp_path / "own.safetensors")
    read = read_statistics(tmp_path / "own.safetensors")
    assert torch.equal(read.gram, own.rounded().gram)
    assert read.mark == own.mark == own.rounded().mark
    read.check_possible()
    head = fit_head(collect(own.map, *examples(), CLASSES), Held(as_split(*examples(1))))
    head.owners = {"east": own.mark}
    head.save(tmp_path / FILE, tmp_path / DESCRIPTION)
    again = read_head(tmp_path, base_of(6))
    assert (again.owners, again.chosen, again.classes) == (head.owners, head.chosen, head.classes)
    assert torch.equal(again(examples(2)[0]), head(examples(2)[0]))
    damaged = (tmp_path / "own.safetensors").read_bytes()[:-5]
    (tmp_path / "own.safetensors").write_bytes(damaged)
    with pytest.raises(RedxError):
        read_statistics(tmp_path / "own.safetensors")
    with pytest.raises(RedxError, match="does not hold the head of this base"):
        read_head(tmp_path, base_of(7))


def test_directions_of_a_guided_map_lean_towards_the_span_of_the_classifier() -> None:
    config, base = StatisticsConfig(size=300, unit=False), base_of(9)
    classifier, _ = torch.linalg.qr(base.weight)  # (9, 4)

    def inside(gain: float) -> float:
        directions = FeatureMap.create(config.model_copy(update={"guided": gain}), base).projection
        return float((classifier.T @ directions).square().sum() / directions.square().sum())

    assert inside(0.0) == pytest.approx(4 / 9, abs=0.1)
    assert inside(4.0) == pytest.approx(20 / 25, abs=0.1)  # 4 dimensions of variance 5, 5 of variance 1
    assert inside(1000.0) == pytest.approx(1, abs=0.01)
    maps = [FeatureMap.create(config.model_copy(update={"guided": gain}), base) for gain in (0.0, 100.0)]
    assert float(maps[0].projection.std()) == pytest.approx(float(maps[1].projection.std()), rel=0.15)


def test_wide_features_are_projected_alone() -> None:
    config = StatisticsConfig(use=True, size=7)
    assert FeatureMap.create(config, base_of(20)).outputs == 28
    wide = FeatureMap.create(config, base_of(5000))
    assert (wide.outputs, wide.linear) == (15, False)
    own = collect(wide, torch.randn(30, 5000), torch.arange(30) % 4, CLASSES)
    own.check_possible()
    assert fit_head(own, Held())(torch.zeros(2, 5000)).shape == (2, 4)


def test_shared_rows_count_once() -> None:
    h, labels = examples()
    h = torch.cat([h, h[:3]])  # three examples occur twice
    labels = torch.cat([labels, labels[:3]])
    every, map = as_split(h, labels), FeatureMap(6, 40, unit=True)
    shared = every.only(torch.arange(0, 60))
    owners = {}
    for name, own in {"east": (0, 1), "north": (2,), "west": (3,)}.items():
        mine = every.only(torch.isin(labels, torch.tensor(own)))
        rest = without_shared(mine, shared)
        owners[name] = collect(map, rest.inputs, rest.labels, CLASSES)
    pool = StatisticsPool(map, lambda: shared)
    total, pooled = pool.total(owners, CLASSES), collect(map, h, labels, CLASSES)
    assert total.counts.tolist() == pooled.counts.tolist()
    torch.testing.assert_close(total.gram, pooled.gram)
    torch.testing.assert_close(total.moments, pooled.moments)


def test_left_out_examples_are_predicted_without_themselves() -> None:
    h, labels = examples(count=60)
    map, split = FeatureMap(6, 0), as_split(h, labels)
    total = collect(map, h, labels, CLASSES)
    chosen = fit_head(total, Held(shared=split), (0.1,)).chosen
    unit = 0.1 * float(total.gram.diagonal().mean())
    outputs = []
    for row in range(len(h)):
        kept = torch.arange(len(h)) != row
        features = map(h[kept]).double()
        gram = features.T @ features + unit * torch.eye(map.outputs, dtype=torch.float64)
        moments = features.T @ torch.nn.functional.one_hot(labels[kept], 4).double()
        outputs.append(map(h[row : row + 1]).double() @ torch.linalg.solve(gram, moments))
    left_out = torch.cat(outputs).float()
    smoothed = partial(torch.nn.functional.cross_entropy, label_smoothing=1 / 61)
    losses = {factor: float(smoothed(factor * left_out, labels)) for factor in TEMPERATURES}
    assert chosen["temperature"] == pytest.approx(min(losses, key=losses.__getitem__), rel=1e-6)


def test_pool_solves_each_set_of_owners_once_and_in_any_order() -> None:
    h, labels = examples()
    map, read = FeatureMap(6, 40, unit=True), []
    owners = owners_of(h, labels, map)

    def statistics(name: str) -> Statistics:
        read.append(name)
        return owners[name]

    shared = as_split(*examples(3, 40))
    pool = StatisticsPool(map, lambda: shared)
    marks = {name: own.mark for name, own in owners.items()}
    first = pool.head(marks, statistics, CLASSES)
    assert pool.head(dict(reversed(marks.items())), statistics, CLASSES) is first
    assert len(read) == 3
    fewer = {name: mark for name, mark in marks.items() if name != "east"}
    assert not torch.equal(pool.head(fewer, statistics, CLASSES).weight, first.weight)
    again = StatisticsPool(map, lambda: shared).head(dict(reversed(marks.items())), statistics, CLASSES)
    assert torch.equal(again.weight, first.weight)
    with pytest.raises(RedxError, match="no shared examples"):
        StatisticsPool(map, head=first).head(fewer, statistics, CLASSES)
    assert StatisticsPool(map, head=first).head(marks, statistics, CLASSES) is first


def test_statistics_of_another_model_are_refused() -> None:
    map = FeatureMap(6, 8, unit=True)
    own = owners_of(*examples(), map)["east"]
    pool = StatisticsPool(map, base=lambda: "ours")
    with pytest.raises(RedxError, match="on another base"):
        pool.check("east", own, CLASSES)
    StatisticsPool(map).check("east", own, CLASSES)
    with pytest.raises(RedxError, match="of another feature map"):
        StatisticsPool(FeatureMap(6, 9, unit=True)).check("east", own, CLASSES)
    with pytest.raises(RedxError, match="which the expert does not bring"):
        StatisticsPool(map).check("east", own, ("a",))
    larger = Statistics(map, own.classes, 1e6 * own.upper, 1e3 * own.moments, own.counts)
    with pytest.raises(RedxError, match="no sums of examples"):
        StatisticsPool(map).check("east", larger, CLASSES)
    scale = torch.ones(map.outputs, dtype=torch.float64)
    scale[: map.width] = 30  # the owner's features are larger than they can be
    upper = (scale * scale[:, None])[torch.triu(torch.ones_like(own.gram)).bool()] * own.upper
    scaled = Statistics(map, own.classes, upper, own.moments * scale[:, None], own.counts)
    with pytest.raises(RedxError, match="features of another size"):
        StatisticsPool(map).check("east", scaled, CLASSES)


def test_bad_statistics_are_refused() -> None:
    own = owners_of(*examples(), FeatureMap(6, 8))["east"]
    tensors, about = own.tensors(), own.describe()

    def refuse(words: str, tensors: dict[str, Tensor] = tensors, about: dict[str, Any] = about) -> None:
        with pytest.raises(RedxError, match=words):
            Statistics.from_tensors(tensors, about).check_possible()

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
