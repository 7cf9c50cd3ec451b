"""The composed head is one plain module that torch exports and compiles; `torch.compile` takes the whole model."""

from __future__ import annotations

import pytest
import torch

import redx
from helpers.own_encoder import composed_model, draw_images
from redx.errors import RedxError


@pytest.fixture(scope="module")
def model() -> redx.Model:
    return composed_model()


@pytest.mark.parametrize("rule", ["red", "base", "fixed", "sum", "red/anchored"])
def test_the_exported_head_is_the_model(model: redx.Model, rule: str) -> None:
    x = draw_images(40, 4).x
    with model.using(rule=rule):
        h, logits = model.embed(x), model(x)
        head = model.head()
    assert torch.allclose(head(h), logits, atol=1e-5)
    rows = {"h": {0: torch.export.Dim("rows")}}
    exported = torch.export.export(head, (h,), dynamic_shapes=rows).module()
    for count in (1, 7, 40):
        assert torch.allclose(exported(h[:count]), logits[:count], atol=1e-5)


def test_the_head_with_a_trained_router(model: redx.Model) -> None:
    own = draw_images(200, 2)
    model.fit_router(own.x, own.domains, router="mlp")
    try:
        h = model.embed(own.x)
        exported = torch.export.export(model.head(), (h,)).module()
        assert torch.allclose(exported(h), model(own.x), atol=1e-5)
    finally:
        model.fit_router()


def test_a_head_that_is_no_single_stack_is_refused(model: redx.Model) -> None:
    with model.using(rule="red-oracle"), pytest.raises(RedxError, match="cannot be exported; choose one of base, red"):
        model.head()


@pytest.mark.slow
def test_a_compiled_model_is_the_same_model(model: redx.Model) -> None:
    x = draw_images(40, 4).x
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))
    head = torch.compile(model.head(), backend="eager")
    assert torch.allclose(head(model.embed(x)), model(x), atol=1e-5)
