"""A model is put together in Python, on any backbone, and keeps what it promises."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import redx
from helpers.fake_device import FakeDevice, is_moved
from helpers.own_encoder import DOMAINS, LABELS, Examples, composed_model, draw_images, own_encoder
from redx.composition.parts import Parts
from redx.composition.rules import compose
from redx.errors import RedxError
from redx.models.router import ROUTERS


@pytest.fixture(scope="module")
def test() -> Examples:
    return draw_images(300, 4)


def accuracy(model: redx.Model, examples: Examples) -> float:
    return float(np.mean([a == b for a, b in zip(model.predict(examples.x), examples.y, strict=True)]))


# --- what it answers


def test_a_strangers_encoder_gives_certified_predictions(model: redx.Model, test: Examples) -> None:
    logits, explanations = model(test.x), model.explain(test.x)
    assert logits.shape == (300, 8)
    assert [LABELS[index] for index in logits.argmax(1).tolist()] == model.predict(test.x)
    assert [one.answer for one in explanations] == model.predict(test.x)
    assert all(0 <= one.radius <= 1 for one in explanations)
    assert set(explanations[0].weights) == set(DOMAINS)
    red = accuracy(model, test)
    with model.using(rule="base"):
        assert red > accuracy(model, test) > 0.5


def test_experts_help_and_the_worst_router_keeps_the_risk(model: redx.Model, test: Examples) -> None:
    assert model.control is not None
    labels = torch.tensor([LABELS.index(label) for label in test.y])
    parts = model.parts(test.x)
    known = Parts(parts.base, parts.residuals, parts.gates, labels, confidences=parts.confidences)
    after = model.control.report(known)["after"]
    assert after["harm"] <= 0.05 + 0.03  # the risk, and what 300 examples may be off
    assert after["clean"] > after["base"]


def test_the_backbone_stays_frozen_and_in_evaluation_mode(test: Examples) -> None:
    encoder = own_encoder()
    before = copy.deepcopy(encoder.state_dict())
    model = composed_model(encoder)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert torch.equal(model(test.x), model(test.x))  # no dropout


def test_features_texts_and_functions(test: Examples) -> None:
    encoder = own_encoder().eval()
    features = redx.Model().fit_base(encoder(test.x).detach(), test.y)
    function = redx.Model(backbone=lambda batch: encoder(batch)).fit_base(test.x, test.y)
    arrays = redx.Model(backbone=lambda batch: encoder(batch).detach().numpy()).fit_base(test.x, test.y)
    mapping = redx.Model(backbone=lambda batch: encoder(batch["image"])).fit_base({"image": test.x}, test.y)
    for one in (function, arrays):
        assert torch.equal(one.embed(test.x), features.embed(encoder(test.x).detach()))
    assert torch.equal(mapping.embed({"image": test.x}), function.embed(test.x))


def test_inputs_go_through_the_backbone_in_batches(monkeypatch: pytest.MonkeyPatch, test: Examples) -> None:
    monkeypatch.setattr("redx.models.encoder.ROWS", 7)
    sizes: list[int] = []

    def backbone(batch: list[Tensor]) -> Tensor:
        sizes.append(len(batch))
        return torch.stack([image.flatten() for image in batch])

    model = redx.Model(backbone=backbone).fit_base(list(test.x), test.y)
    assert max(sizes) == 7
    assert sum(sizes) == 300
    assert len(model.embed(list(test.x[:10]))) == 10
    assert model.embed([]).shape == (0, model.base.width)


def test_the_base_alone_answers_before_there_are_experts(test: Examples) -> None:
    model = redx.Model(own_encoder(), LABELS).fit_base(test.x, test.y)
    assert accuracy(model, test) > 0.5
    assert model.explain(test.x)[0].expert is None
    with pytest.raises(RedxError, match=r"no experts yet; add some with model.add_expert"):
        model.calibrate(test.x, test.y)
    with pytest.raises(RedxError, match="no experts yet"):
        model.fit_router(test.x, test.domains, "linear")
    model.add_expert("cars", *test.of("cars"))
    with pytest.raises(RedxError, match=r"no calibration for its experts .* model.calibrate"):
        model.predict(test.x)
    with model.using(rule="base"):
        assert accuracy(model, test) > 0.5


def test_domains_that_share_labels(test: Examples) -> None:
    model = redx.Model().fit_base(test.x.flatten(1), test.y, domains=["left", "right"] * 150)
    for name in ("left", "right"):
        model.add_expert(name, test.x[:90].flatten(1), test.y[:90])
    assert model.info.domains == ("left", "right")
    assert model.config.ownership.kind == "binary"
    control = model.calibrate(test.x.flatten(1), test.y)
    assert control.by == "all"
    assert len(model.predict(test.x.flatten(1))) == 300
    control = model.calibrate(test.x.flatten(1), test.y, by="domain")  # the domain that the base names
    assert control.domain_names == ("left", "right")
    parts = model.parts(test.x.flatten(1))
    assert parts.named is not None
    assert torch.equal(torch.stack(parts.cutoffs), torch.stack(control.cutoffs_for(parts.base, parts.named)))  # pyright: ignore


# --- algebra


def residual_parts(model: redx.Model, x: Tensor) -> Parts:
    with model.using(rule="red/anchored"):
        return model.parts(x)


def test_zero_weights_are_the_base_bit_for_bit(model: redx.Model, test: Examples) -> None:
    parts = model.parts(test.x)
    with model.using(rule="base"):
        base = model(test.x)
    assert torch.equal(compose("red", parts, torch.zeros_like(parts.gates)), base)
    assert torch.equal(base, parts.base)


def test_the_base_is_the_sum_of_statistics_unless_shared_examples_are_too_few() -> None:
    shared, own = draw_images(120, 1), draw_images(400, 2)
    model = redx.Model(own_encoder(), LABELS).fit_base(shared.x, shared.y)
    before = model.experts.base_logits(None, model.embed(own.x))
    model.add_expert("cars", *own.of("cars"))
    assert not torch.equal(model.experts.base_logits(None, model.embed(own.x)), before)
    few = redx.Model(own_encoder(), LABELS).fit_base(shared.x[: len(LABELS) - 1], shared.y[: len(LABELS) - 1])
    assert few.experts.pool is None
    few.add_expert("cars", *own.of("cars"))
    few.rule = "red/anchored"
    assert few(own.x).shape == (400, len(LABELS))


def test_one_hot_weights_are_that_expert(model: redx.Model, test: Examples) -> None:
    parts = residual_parts(model, test.x)
    for index, name in enumerate(model.experts.names):
        alone = torch.zeros_like(parts.gates)
        alone[:, index] = 1
        assert torch.equal(compose("red", parts, alone), parts.base + parts.residuals[:, index])
        with model.using(rule="red/anchored", without=[other for other in model.experts.names if other != name]):
            left = residual_parts(model, test.x)  # the base learns nothing from the others either
            assert torch.equal(compose("red", left, torch.ones_like(left.gates)), model(test.x))


def test_adding_and_removing_restores_every_tensor(model: redx.Model, test: Examples) -> None:
    before, tensors = model(test.x), all_tensors(model)
    removed = model.remove_expert("cars")
    assert model.experts.names == ("animals", "fruit", "tools")
    assert not torch.equal(model.parts(test.x).residuals, before)
    assert model.add_expert(removed) == "cars"
    after = all_tensors(model)
    assert after.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], after[name]) for name in tensors)
    assert torch.equal(model(test.x), before)


def all_tensors(model: redx.Model) -> dict[str, Tensor]:
    experts = {f"{one.name} {name}": value for one in model.experts for name, value in one.tensors().items()}
    return {**model.state_dict(), **experts}


def test_the_order_of_adding_does_not_matter(model: redx.Model, test: Examples) -> None:
    before = model(test.x)
    removed = [model.remove_expert(name) for name in ("tools", "animals", "fruit")]
    for expert in removed:
        model.add_expert(expert)
    assert torch.equal(model(test.x), before)


def test_an_expert_does_not_depend_on_the_others(test: Examples) -> None:
    own = draw_images(400, 2)
    both, alone = (redx.Model(own_encoder(), LABELS).fit_base(test.x, test.y) for _ in range(2))
    for name in ("cars", "tools"):
        both.add_expert(name, *own.of(name))
    alone.add_expert("tools", *own.of("tools"))
    mine, other = both.experts["tools"].tensors(), alone.experts["tools"].tensors()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


# --- routers


@pytest.mark.parametrize("router", ["linear", "mlp"])
def test_a_router_is_trained_and_saved(model: redx.Model, test: Examples, router: str, tmp_path: Path) -> None:
    by_keys = model(test.x)
    own = draw_images(400, 2)
    model.fit_router(own.x, own.domains, router=router)
    assert not model.uses_keys
    assert not torch.equal(model(test.x), by_keys)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(redx.Model.from_pretrained(tmp_path / "saved", model.backbone)(test.x), model(test.x))
    model.fit_router()
    assert torch.equal(model(test.x), by_keys)
    model.save_pretrained(tmp_path / "keys")
    assert torch.equal(redx.Model.from_pretrained(tmp_path / "keys", model.backbone)(test.x), by_keys)


def test_keys_routes_while_the_router_lacks_a_gate(
    model: redx.Model, test: Examples, caplog: pytest.LogCaptureFixture
) -> None:
    own, removed = draw_images(400, 2), model.remove_expert("tools")
    known = [row for row, name in enumerate(own.domains) if name != "tools"]
    model.fit_router(own.x[known], [own.domains[row] for row in known], router="linear")
    before = model(test.x)
    with caplog.at_level(logging.WARNING):
        model.add_expert(removed)
    assert "no gate for 'tools', so keys routes" in caplog.text
    assert model.uses_keys
    assert len(model.predict(test.x)) == 300
    model.remove_expert("tools")
    assert not model.uses_keys
    assert torch.equal(model(test.x), before)


def test_a_registered_router_is_trained_and_saved(model: redx.Model, test: Examples, tmp_path: Path) -> None:
    class Nearest(nn.Module):
        def __init__(self, inputs: int, experts: int) -> None:
            super().__init__()
            self.centres = nn.Buffer(torch.zeros(experts, inputs))

        def forward(self, h: Tensor) -> Tensor:
            return -torch.cdist(h, self.centres)

        def solve(self, h: Tensor, domains: Tensor) -> None:
            for domain in range(len(self.centres)):
                self.centres[domain] = h[domains == domain].mean(0)

    ROUTERS.register("nearest", lambda inputs, experts, config: Nearest(inputs, experts))
    try:
        model.fit_router(test.x, test.domains, router="nearest")
        assert model.config.router.shape == "nearest"
        model.save_pretrained(tmp_path / "saved")
        again = redx.Model.from_pretrained(tmp_path / "saved", model.backbone)
        assert torch.equal(again(test.x), model(test.x))
    finally:
        ROUTERS.unregister("nearest")
    with pytest.raises(RedxError, match=r"no router 'nearest'; choose"):
        model.fit_router(test.x, test.domains, router="nearest")


# --- files


def test_a_saved_model_is_the_same_model(model: redx.Model, test: Examples, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    again = redx.Model.from_pretrained(tmp_path / "saved", backbone=own_encoder())
    assert torch.equal(again(test.x), model(test.x))
    assert again.explain(test.x) == model.explain(test.x)
    assert again.calibrate(risk=0.1).cutoffs == model.calibrate(risk=0.1).cutoffs
    own = draw_images(100, 5)
    for one in (model, again):
        one.remove_expert("cars")
        one.add_expert("cars", *own.of("cars"))
    assert torch.equal(again(test.x), model(test.x))


def test_without_calibration_examples_the_model_keeps_its_cutoff(
    model: redx.Model, test: Examples, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "saved", calibration=False, shared=False)
    assert not {"shared.safetensors", "calibration.safetensors"} & {
        path.name for path in (tmp_path / "saved").iterdir()
    }
    again = redx.Model.from_pretrained(tmp_path / "saved", backbone=own_encoder())
    assert torch.equal(again(test.x), model(test.x))
    again.remove_expert("cars")
    with pytest.raises(RedxError, match="no shared examples, so its base cannot be computed anew"):
        again.predict(test.x)
    with pytest.raises(RedxError, match="holds no shared examples to train an expert with"):
        again.add_expert("cars", *draw_images(100, 5).of("cars"))


def test_owners_train_experts_apart_on_a_published_base(test: Examples, tmp_path: Path) -> None:
    shared, own = draw_images(120, 1), draw_images(400, 2)
    redx.Model(own_encoder(), LABELS).fit_base(shared.x, shared.y).save_pretrained(tmp_path / "base")
    composed = redx.Model.from_pretrained(tmp_path / "base", own_encoder())
    for name in DOMAINS:
        owner = redx.Model.from_pretrained(tmp_path / "base", own_encoder())
        owner.add_expert(name, *own.of(name))
        owner.experts[name].save(tmp_path / name)
        assert composed.add_expert(tmp_path / name) == name
    held = draw_images(200, 3)
    composed.calibrate(held.x, held.y, risk=0.05)
    assert torch.equal(composed(test.x), composed_model()(test.x))


def test_state_dict_and_copies(model: redx.Model, test: Examples) -> None:
    state = model.state_dict()
    assert {name.partition(".")[0] for name in state} == {"backbone", "base"}
    other = composed_model()
    with torch.no_grad():
        other.base.weight.mul_(2)
    assert not torch.equal(other(test.x), model(test.x))
    other.load_state_dict(state)
    assert torch.equal(other(test.x), model(test.x))
    assert torch.equal(copy.deepcopy(model)(test.x), model(test.x))


def test_double_precision_and_back(model: redx.Model, test: Examples) -> None:
    before = model(test.x)
    assert torch.allclose(model.double()(test.x.double()).float(), before, atol=1e-4)


def test_everything_moves_to_the_device(model: redx.Model, test: Examples) -> None:
    before = model(test.x)
    with FakeDevice() as fake:
        moved: Any = model.to("cuda")
        assert all(is_moved(value) for value in moved.state_dict().values())
        logits = moved(test.x)
        assert fake.moved > 0
    assert torch.equal(logits.cpu(), before)
