"""The frozen base: standardising its features keeps the logits, and its tensors restore it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.models import draw_features, identity_base
from redx.errors import RedxError
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base


def test_the_bus_standardises_features_and_keeps_the_logits() -> None:
    x = 3 * draw_features(100).inputs + 2
    classifier = nn.Linear(16, 10)
    base = Base.from_trained(IdentityEncoder(), classifier, x)
    h = base.embed(x)
    assert torch.allclose(h.mean(0), torch.zeros(16), atol=1e-5)
    assert (h.std(0) < 1).all()
    assert torch.allclose(base.classify(h), classifier(x), atol=1e-4)
    assert (base.width, base.outputs) == (16, 10)


def test_the_tensors_of_a_base_restore_it() -> None:
    base, x = identity_base(), draw_features(5).inputs
    again = Base.from_tensors(base.tensors(), IdentityEncoder())
    assert torch.equal(again.classify(again.embed(x)), base.classify(base.embed(x)))
    lacking = {name: tensor for name, tensor in base.tensors().items() if name != "standardise.mean"}
    with pytest.raises(RedxError, match="does not fit the model's backbone"):
        Base.from_tensors(lacking, IdentityEncoder())
