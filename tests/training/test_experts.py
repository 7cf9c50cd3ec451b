"""Training of experts: every bank and the ownership score of each, with the description that is saved."""

from __future__ import annotations

import pytest
import torch

from helpers.models import DOMAINS, draw_expert_datasets, draw_features, identity_base
from redx.models.expert import Expert
from redx.runs.presets import configure
from redx.training.experts import train_experts

CLASSES = tuple("abcdefghij")
CONFIG = configure("features", "quick", file="x.npz", epochs={"experts": 2})


def train(names: str = DOMAINS, dtype: str = "float32") -> list[Expert]:
    datasets = [data for data in draw_expert_datasets(draw_features(200)) if data.name in names]
    return train_experts(CONFIG, datasets, identity_base(), 0, 1.0, CLASSES, {"probe": [[1.0]]}, dtype)


def test_an_expert_carries_its_description() -> None:
    expert = train()[1]
    assert expert.info["domain"] == expert.name == "b"
    assert expert.info["classes"] == ["c", "d"]
    assert expert.info["base"] == {"probe": [[1.0]]}
    assert expert.info["training"] == {"examples": 40, "anchors": 160}
    assert expert.info["metrics"]["examples"] == 20
    own = {
        str(bank_id) for bank_id, bank in CONFIG.of_form("residual", "standalone").items() if bank.experts_of is None
    }
    assert set(expert.info["banks"]) == own
    assert set(expert.info["metrics"]) == own | {"examples", "base"}
    assert {name.partition(".")[0] for name in expert.tensor_names()} == own | {"ownership"}
    assert expert.info["ownership"] == {"score": CONFIG.ownership.kind}


def test_an_expert_does_not_depend_on_the_others() -> None:
    together = {expert.name: expert.tensors() for expert in train()}
    (alone,) = train("c")
    for name, tensor in alone.tensors().items():
        assert torch.allclose(tensor, together["c"][name], atol=1e-5), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_are_stored_in_the_precision_that_is_asked_for(dtype: str) -> None:
    (half,), (full,) = train("a", dtype), train("a")
    assert half.info["dtype"] == dtype
    wanted = getattr(torch, dtype)
    assert all(tensor.dtype == wanted for tensor in half.tensors().values() if tensor.is_floating_point())
    assert all(torch.equal(tensor.to(wanted), half.tensors()[name]) for name, tensor in full.tensors().items())
