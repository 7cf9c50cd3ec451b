"""Experts with classes of their own: the base never answers them, and what was before comes back bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.models import CLASSES, DOMAINS, draw_features, identity_base
from helpers.new_classes import ANCHORED, HEADS, NAMES, RISK, draw_new, new_expert, small_model
from redx.composition.confidence import confidences
from redx.composition.evaluation import certify, predict
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.risk import harm_thresholds
from redx.composition.rules import compose, get_rule, vertex_scores
from redx.errors import RedxError
from redx.model.model import Model
from redx.models.classes import GAP, add_floor, check_new_classes, extend_base, place_columns
from redx.models.expert import Expert
from redx.models.library import CLOSED_GATE
from redx.models.ownership import own_class_score

NEW = ("n1", "n2")


def inputs() -> Tensor:
    """Return features of known and of new classes."""
    return torch.cat([draw_features(60, 7).inputs, draw_new(NEW, 30, 7).inputs])


def all_outputs(model: Model) -> dict[str, Any]:
    """Return everything that a model says about the inputs."""
    unknown = torch.full((len(inputs()),), -1)
    parts = {str(bank): model.parts_of(inputs(), bank, unknown, unknown).tensors() for bank in model.banks}
    tensors = {f"{bank} {name}": value for bank, one in parts.items() for name, value in one.items()}
    own = {f"{expert.name} {name}": value for expert in model.experts for name, value in expert.tensors().items()}
    cutoffs = model.current_control().cutoffs
    return {**tensors, **own, "answers": model.predict(inputs()), "classes": model.classes, "cutoffs": cutoffs}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize("shape", ["mlp", "lowrank", "linear"])
def test_removing_an_expert_with_new_classes_restores_every_tensor_and_answer(shape: str) -> None:
    model = small_model(shape=shape)
    before = all_outputs(model)
    expert = new_expert("new", NEW, 2, shape)
    model.experts.add(expert)
    extended = all_outputs(model)
    assert model.classes == (*NAMES, *NEW)
    assert not same(before, extended)
    assert model.experts.remove("new") is expert
    assert same(all_outputs(model), before)
    with model.experts.changing() as library:
        library.add(expert)
        assert same(all_outputs(model), extended)
    assert same(all_outputs(model), before)


def test_a_model_without_new_classes_uses_the_base_itself() -> None:
    model = small_model()
    assert model.experts.extended_base is model.base
    assert model.classes == NAMES
    values = torch.randn(3, CLASSES)
    assert place_columns(values, CLASSES, (), (), residual=True) is values


def test_the_order_of_adding_does_not_matter() -> None:
    experts = [new_expert("z", ("n10",)), new_expert("new", NEW, 2), new_expert("m", ("n9",), 1)]
    outputs = [all_outputs(small_model(*order)) for order in itertools.permutations(experts)]
    assert outputs[0]["classes"] == (*NAMES, "n1", "n2", "n9", "n10")
    assert all(same(outputs[0], other) for other in outputs[1:])


def test_known_columns_are_those_of_the_base_bit_for_bit_and_new_ones_lie_below() -> None:
    h, base = inputs(), identity_base()
    logits = extend_base(base, 3).classify(h)
    assert torch.equal(logits[:, :CLASSES], base.classify(h))
    assert torch.equal(logits[:, CLASSES:], (base.classify(h).amin(-1, keepdim=True) - GAP).expand(-1, 3))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e12])
def test_with_zero_weights_no_new_class_is_answered(scale: float) -> None:
    logits = add_floor(scale * torch.randn(50, 4), 3)
    assert int(predicted_classes(logits).max()) < 4
    model = small_model(new_expert("new", NEW, 2))
    with model.using("base"):
        assert not set(model.predict(inputs())) & set(NEW)


def test_full_weight_gives_the_expert_and_other_experts_leave_new_classes_at_the_floor() -> None:
    expert = new_expert("new", NEW, 2)
    model, h = small_model(expert), inputs()
    unknown = torch.full((len(h),), -1)
    parts = model.parts_of(h, ANCHORED, unknown, unknown)
    one_hot = torch.zeros(len(h), len(model.experts))
    index = model.experts.names.index("new")
    one_hot[:, index] = 1
    own = expert.bank(ANCHORED, model.config.banks[ANCHORED], model.base)(h[None])[0]
    alone = extend_base(model.base, 2).classify(h) + own
    assert torch.allclose(compose(get_rule("red"), parts, one_hot), alone, atol=1e-5)
    others = [number for number in range(len(model.experts)) if number != index]
    assert not parts.residuals[:, others, CLASSES:].any()
    heads = model.parts_of(h, HEADS, unknown, unknown).residuals[:, others]
    floor = (heads[..., :CLASSES].amin(-1, keepdim=True) - GAP).expand(-1, -1, 2)
    assert torch.equal(heads[..., CLASSES:], floor)


@pytest.mark.parametrize("shape", ["mlp", "lowrank"])
def test_a_new_class_wins_with_nine_tenths_of_the_weight(shape: str) -> None:
    model = small_model(new_expert("new", NEW, 2, shape), shape=shape)
    test = draw_new(NEW, 100, 9)
    parts = model.parts_of(test.inputs, ANCHORED, test.labels + CLASSES, test.domains)
    for share in (1.0, 0.9):
        weights = torch.full((100, len(model.experts)), (1 - share) / (len(model.experts) - 1))
        weights[:, model.experts.names.index("new")] = share
        right = predicted_classes(compose(get_rule("red"), parts, weights)) == parts.labels
        assert right.double().mean() > 0.9


def record() -> Parts:
    """Return the record of known and new examples for a model with two experts that bring classes."""
    model = small_model(new_expert("new", NEW, 2), new_expert("z", ("n2", "n3")))
    known, new = draw_features(60, 8), draw_new(NEW, 40, 8)
    right = predicted_classes(model.base.classify(known.inputs))  # examples that the base gets right can be harmed
    labels = torch.cat([right, new.labels + CLASSES])
    return model.parts_of(torch.cat([known.inputs, new.inputs]), RISK, labels, torch.full_like(labels, -1))


@pytest.mark.parametrize("cutoff", [None, -2.0, 1.0])
def test_the_certificate_agrees_with_brute_force_over_the_vertices(cutoff: float | None) -> None:
    rule, parts = get_rule("red"), record()
    parts = replace(parts, cutoffs=None if cutoff is None else Cutoffs(cutoff, cutoff))
    certified, weights = certify(rule, parts), rule.weights(parts)
    vertices = vertex_scores(rule, parts)  # (N, K, C)
    scores = compose(rule, parts, weights)
    for share in (0.3, 0.7, 1.0):
        mixed = (1 - share) * scores[:, None] + share * vertices
        holds = (predicted_classes(mixed) == certified.predicted[:, None]).all(-1)
        clear = (certified.radius - share).abs() > 1e-3
        assert torch.equal(holds[clear & (share < 1)], (certified.radius > share)[clear & (share < 1)])
        assert bool(holds[certified.radius >= share].all())
    assert 0 < int((certified.radius < 1).sum()) < len(parts)


def test_thresholds_agree_with_brute_force_and_new_classes_are_no_harm() -> None:
    parts = record()
    assert parts.confidences is not None
    thresholds = harm_thresholds(get_rule("red"), parts)
    assert torch.isneginf(thresholds[60:]).all()  # the base is wrong on new classes, so nothing can be lost
    right = predicted_classes(parts.base) == parts.labels
    for cutoff in (-5.0, 0.0, 3.0):
        active = parts.confidences > cutoff
        vertices = parts.base[:, None] + parts.residuals * active[..., None]
        lost = right & (predicted_classes(vertices) != parts.true_labels()[:, None]).any(-1)
        assert torch.equal(lost, thresholds > cutoff)
    assert bool((thresholds > -5.0).any())


def test_two_experts_may_bring_the_same_class() -> None:
    model = small_model(new_expert("new", NEW, 2), new_expert("z", ("n2", "n3")))
    assert model.classes == (*NAMES, "n1", "n2", "n3")
    unknown = torch.full((len(inputs()),), -1)
    residuals = model.parts_of(inputs(), ANCHORED, unknown, unknown).residuals
    speaks = residuals[:, :, CLASSES:].abs().sum(0) > 0  # (K, 3)
    assert speaks[[model.experts.names.index(name) for name in ("new", "z")]].tolist() == [
        [True, True, False],
        [False, True, True],
    ]
    two = draw_new(("n2", "n3"), 40, 3)
    with model.using("red/anchored", without=DOMAINS):
        ranges = {one.answer: one.range for one in model.explain(two.inputs)}
    assert (ranges["n2"], ranges["n3"]) == (None, "z")  # two experts bring n2


def test_an_expert_may_know_no_class_of_the_base() -> None:
    expert = new_expert("z", ("n2", "n3"))
    assert expert.info["classes"] == ["n2", "n3"] == expert.info["new_classes"]
    model = small_model(expert)
    test = draw_new(("n2", "n3"), 60, 4)
    with model.using("red/anchored", without=DOMAINS):
        answers = model.predict(test.inputs)
    assert sum(answer == ("n2", "n3")[label] for answer, label in zip(answers, test.labels.tolist(), strict=True)) > 50


def renamed(label: str) -> Expert:
    """Return an expert whose only new class has this name."""
    expert = new_expert("z", ("n3",))
    return Expert(expert.info | {"new_classes": [label]}, expert.tensors())


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("C3", "differs from 'c3' only in case or white space"),
        ("N 1", "differs from 'n 1' only in case"),
        ("n  1 ", "differs from 'n 1' only in case"),
        ("c3", "which the base knows"),
        (" ", "class without a name"),
    ],
)
def test_classes_that_could_be_mistaken_are_refused(label: str, message: str) -> None:
    other = new_expert("y", ("n1",))
    model = small_model(Expert(other.info | {"new_classes": ["n 1"]}, other.tensors()))
    before = model.classes
    with pytest.raises(RedxError, match=message):
        model.experts.add(renamed(label))
    assert (model.classes, "z" in model.experts) == (before, False)


def test_an_expert_may_be_replaced_by_one_with_another_spelling() -> None:
    model = small_model(renamed("n3"))
    model.experts.replace("z", renamed("N3"))
    assert model.classes == (*NAMES, "N3")


def test_a_regression_takes_no_classes_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(RedxError, match="answers with numbers"):
        check_new_classes("z", ["n1"], (), ())
    expert = new_expert("z", ("n3",))
    with pytest.raises(RedxError, match="do not fit"):
        small_model().experts.add(Expert(expert.info | {"new_classes": ["n3", "n4"]}, expert.tensors()))
    with pytest.raises(RedxError, match="do not fit"):
        small_model().experts.add(Expert(expert.info | {"new_classes": []}, expert.tensors()))


def test_gates_of_keys_count_the_answers_only_where_classes_are_new() -> None:
    model, h = small_model(), inputs()
    unknown = torch.full((len(h),), -1)
    assert torch.equal(model.parts_of(h, RISK, unknown, unknown).gates, model.experts.ownership_scores(h))
    model.experts.add(new_expert("new", NEW, 2))
    parts = model.parts_of(h, RISK, unknown, unknown)
    own = model.experts.own_classes()
    assert own is not None
    ownership = model.experts.ownership_scores(h) + own_class_score(parts.base[:, None] + parts.residuals, own)
    assert torch.equal(parts.gates, confidences("all", parts.base, parts.residuals, ownership))
    assert parts.confidences is not None
    sure = confidences("contest", parts.base, parts.residuals, ownership, own=own)  # silent outside own classes
    assert torch.equal(parts.confidences, sure)
    assert torch.equal(model.parts_of(h, HEADS, unknown, unknown).gates, model.experts.ownership_scores(h))


def test_a_calibration_of_an_earlier_version_is_used_as_it_was_made() -> None:
    model, h = small_model(new_expert("new", NEW, 2)), inputs()
    unknown = torch.full((len(h),), -1)
    calibration = model.current_control()
    assert calibration.answers
    calibration.answers = False
    parts = model.parts_of(h, RISK, unknown, unknown)
    assert parts.confidences is not None
    own, ownership = model.experts.own_classes(), model.experts.ownership_scores(h)
    before = confidences("contest", parts.base, parts.residuals, ownership, own=own)
    assert torch.equal(parts.confidences, before)
    model.experts.remove("new")
    assert not model.current_control().answers


def test_own_classes_are_those_of_the_domain_and_the_new_ones() -> None:
    model = small_model(new_expert("new", NEW, 2), new_expert("z", ("n10",)))
    own = model.experts.own_classes()
    assert own is not None
    for row, expert in zip(own, model.experts, strict=True):
        assert [model.classes[index] for index in row.nonzero()[:, 0].tolist()] == sorted(
            expert.info["classes"], key=model.classes.index
        )


def test_answers_of_few_experts_name_the_same_classes() -> None:
    model = small_model(new_expert("z", ("n10",)), new_expert("new", NEW, 2))
    whole = model.predict(inputs(), top=len(model.experts))
    assert whole == model.predict(inputs())
    assert set(model.predict(inputs(), top=1)) <= set(model.classes)


def test_few_experts_have_the_gates_that_they_have_among_all() -> None:
    model, rule = small_model(), get_rule("red")
    model.experts.add(new_expert("new", NEW, 2))
    first = model.experts.ownership_scores(inputs()).topk(2, -1).indices
    assert len({tuple(row) for row in first.sort(-1).values.tolist()}) > 1, "all examples ask the same two"
    unknown = torch.full((len(inputs()),), -1)
    parts = model.parts_of(inputs(), ANCHORED, unknown, unknown)
    closed = torch.full_like(parts.gates, CLOSED_GATE)
    parts = replace(parts, gates=closed.scatter(1, first, parts.gates.gather(1, first)))
    expected = predict(rule, parts, rule.weights(parts)).tolist()
    with model.using(rule="red/anchored"):
        assert model.predict(inputs(), top=2) == [model.classes[index] for index in expected]


def test_new_classes_are_calibrated_on_and_are_no_strangers() -> None:
    model = small_model(new_expert("new", NEW, 2))
    test, known = draw_new(NEW, 100, 11), draw_features(200, 12)
    strange = model.is_unfamiliar(test.inputs, 0.1).double().mean()
    model.experts.remove("new")
    assert strange < 0.3 < model.is_unfamiliar(test.inputs, 0.1).double().mean()
    model.experts.add(new_expert("new", NEW, 2))
    labels = [model.classes[label] for label in torch.cat([known.labels, test.labels + CLASSES]).tolist()]
    calibration = model.calibrate(torch.cat([known.inputs, test.inputs]), labels, risk=0.05)
    assert torch.isneginf(calibration.thresholds["simplex"][200:]).all()
