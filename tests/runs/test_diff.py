"""What a change of experts does to the answers on the choice examples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import redx
from helpers.own_data import draw_clouds
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.model.model import Model
from redx.runs import diff


def examples_of(model: Model, count: int = 40) -> Split:
    """Return examples of the clouds as features of a model."""
    arrays = draw_clouds(count, seed=9)
    labels = torch.tensor([model.classes.index(name) for name in arrays["y"]])
    return Split(model.base.embed(model.read(arrays["x"])), labels, torch.from_numpy(arrays["domain"]))


def test_without_a_change_nothing_flips(clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    test = examples_of(model)
    view = diff.SplitAnswers.compute(model, test)
    same = diff.compare_answers(view, view, model, test, (0.0, 1.0))
    assert (same["flips"], same["gained"], same["lost"], same["examples"]) == (0, 0, 0, [])
    assert same["experts"]["before"] == same["experts"]["after"] == list(model.experts.names)
    assert set(same["domains"]) == set(model.info.domains)
    assert all(share["broken"] == share["appeared"] == 0 for share in same["certificates"].values())


def test_flips_are_counted_and_described(clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    test = examples_of(model)
    with model.using("global"):
        before = diff.SplitAnswers.compute(model, test)
    with model.using("base"):
        after = diff.SplitAnswers.compute(model, test)
    changed = diff.compare_answers(before, after, model, test, (0.0,))
    flipped = (before.certified.predicted != after.certified.predicted).nonzero()[:, 0].tolist()
    assert changed["flips"] == len(flipped) > 0
    assert [example["row"] for example in changed["examples"]] == flipped
    first = changed["examples"][0]
    assert first["label"] == model.classes[int(test.labels[flipped[0]])]
    assert first["before"] != first["after"]
    assert changed["gained"] == sum(domain["gained"] for domain in changed["domains"].values())
    assert changed["lost"] == sum(domain["lost"] for domain in changed["domains"].values())


def test_a_difference_compares_both_sides_with_one_router(clouds_copy: Path) -> None:
    names = redx.load(clouds_copy).experts.names
    removed = diff.diff_experts(clouds_copy, removed=[names[0]])
    assert removed["router"] == "router"
    assert removed["experts"]["after"] == list(names[1:])
    keys = diff.diff_experts(clouds_copy, removed=[names[0]], router="keys")
    assert keys["router"] == "keys"
    with pytest.raises(RedxError, match="nothing to compare"):
        diff.diff_experts(clouds_copy)
    with pytest.raises(RedxError, match="no expert 'x'"):
        diff.diff_experts(clouds_copy, removed=["x"])
