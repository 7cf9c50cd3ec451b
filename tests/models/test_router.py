"""Routers: one gate per expert of the library, in its order."""

from __future__ import annotations

import pytest
import torch

import redx
from helpers.models import LoadedModel
from helpers.own_data import draw_clouds
from redx.errors import RedxError
from redx.models.expert import Expert
from redx.models.router import NetworkRouter, TrainedRouter, check_routing, initialise_router
from redx.seeding import generator


@pytest.mark.parametrize("shape", ["linear", "mlp"])
def test_a_network_router_standardises_by_its_training_data(shape: str) -> None:
    router = NetworkRouter(4, experts=3, shape=shape, hidden=8)
    initialise_router(router, generator(0, "router"))
    x = 5 * torch.randn(200, 4, generator=generator(0, "x")) + 2
    x[:, 3] = 1  # a constant feature must not divide by zero
    router.fit(x)
    standardised = router.standardise(x)
    assert torch.allclose(standardised.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(standardised[:, :3].std(0), torch.ones(3), atol=1e-5)
    assert torch.equal(router(x), router.layers(standardised))
    assert router(x).shape == (200, 3)


def test_initial_weights_come_from_the_generator_and_biases_are_zero() -> None:
    first, again, other = (NetworkRouter(4, 3, hidden=8) for _ in range(3))
    for router, seed in ((first, 0), (again, 0), (other, 1)):
        initialise_router(router, generator(seed, "router"))
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, same) for one, same, _ in pairs)
    assert all(not one.any() if one.ndim == 1 else not torch.equal(one, different) for one, _, different in pairs)


def test_gates_follow_the_order_of_the_library(clouds: redx.Run) -> None:
    library = redx.load(clouds.folder).experts
    network = NetworkRouter(library.base.width, len(library))
    initialise_router(network, generator(0, "router"))
    h = torch.randn(5, library.base.width, generator=generator(0, "h"))
    reversed_names = library.names[::-1]
    gates = TrainedRouter(network, reversed_names).gates(h, library)
    assert torch.equal(gates, network(h).flip(1))
    fewer = library.subset(library.names[:2])
    assert torch.equal(TrainedRouter(network, reversed_names).gates(h, fewer), gates[:, :2])


def test_keys_are_the_ownership_scores_and_know_every_expert(clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    h = torch.randn(5, model.base.width, generator=generator(0, "h"))
    with model.using(router="keys"):
        assert torch.equal(model.gates(h), model.experts.ownership_scores(h))


def test_a_trained_router_has_no_gate_for_a_new_expert(loaded: LoadedModel) -> None:
    model = loaded.model
    old = model.experts[model.experts.names[0]]
    model.experts.add(Expert(old.info | {"domain": "newcomer"}, old.tensors()))
    with pytest.raises(RedxError, match=r"no gate for the expert 'newcomer'.*redx router train"):
        model.predict(loaded.inputs)
    with model.using(router="keys"):
        assert tuple(model.explain(loaded.inputs)[0].weights) == model.experts.names


def test_gates_contain_the_ownership_scores_where_the_settings_ask_for_it(clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    assert model.router is not None
    h = model.embed(draw_clouds(20, seed=1)["x"])
    alone, ownership = model.router.gates(h, model.experts), model.experts.ownership_scores(h)
    assert torch.equal(model.gates(h), alone)
    settings = model.config.router.model_copy(update={"add_ownership": True})
    model.config = model.config.model_copy(update={"router": settings})
    assert torch.equal(model.gates(h), alone + ownership)
    inputs = draw_clouds(20, seed=1)["x"]
    assert model.predict(inputs, top=len(model.experts)) == model.predict(inputs)
    assert torch.equal(model.parts(inputs).gates, alone + ownership)
    with model.using(router="keys"):
        assert torch.equal(model.gates(h), ownership)


def test_an_unknown_way_to_route_is_refused() -> None:
    assert check_routing("keys") == "keys"
    with pytest.raises(RedxError, match="no router 'best'"):
        check_routing("best")
