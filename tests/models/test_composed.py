"""Composed models."""

from __future__ import annotations

import math

import pytest
import torch

import redx


def test_model_answers_and_explains(toy: redx.Run) -> None:
    model = redx.load(toy.folder)
    pairs = [[12, 5], [90, 99]]
    assert model.predict(pairs) == [told["answer"] for told in model.explain(pairs)]
    told = model.explain(pairs)[0]
    assert math.isclose(sum(told["weights"].values()), 1, rel_tol=1e-5)
    assert 0 <= told["radius"] <= 1
    with model.using(rule="base"):
        assert model.predict(pairs) == [17, 189]


def test_using_is_undone(toy: redx.Run) -> None:
    model = redx.load(toy.folder)
    before = model.parts([[12, 5]])
    with model.using(rule="sum", without=["1-20", "81-100"]):
        assert model.parts([[12, 5]]).experts == 3
    assert model.parts([[12, 5]]).experts == 5
    assert torch.equal(model.parts([[12, 5]]).residuals, before.residuals)
    with pytest.raises(redx.RedxError, match="no expert 'x'"), model.using(without=["x"]):
        pass
    with pytest.raises(redx.RedxError, match="no rule 'x'"), model.using(rule="x"):
        pass
    with pytest.raises(redx.RedxError, match="no seed 7"):
        redx.load(toy.folder, seed=7)
