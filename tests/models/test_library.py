"""The library of experts: adding and removing restores every bit, and experts of another base are refused."""

from __future__ import annotations

import time

import pytest
import torch

from helpers.models import LoadedModel
from redx.errors import RedxError
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary, order_domains


@pytest.mark.parametrize("router", ["router", "keys"])
def test_adding_a_removed_expert_restores_every_bit(loaded: LoadedModel, router: str) -> None:
    model = loaded.model
    name = model.experts.names[2]
    with model.using("red", router=router):
        before = loaded.scores()
        removed = model.experts.remove(name)
        assert name not in model.explain(loaded.inputs)[0].weights
        without = loaded.scores()
        model.experts.add(removed)
        assert torch.equal(loaded.scores(), before)
        model.experts.remove(name)
        assert torch.equal(loaded.scores(), without)


def test_the_weight_of_a_removed_expert_goes_to_the_others_in_proportion(loaded: LoadedModel) -> None:
    model = loaded.model
    name = model.experts.names[2]
    whole = model.explain(loaded.inputs)
    with model.using(without=[name]):
        for before, after in zip(whole, model.explain(loaded.inputs), strict=True):
            rest = 1 - before.weights[name]
            if not rest:  # nobody else had any
                continue
            expected = {other: share / rest for other, share in before.weights.items() if other != name}
            assert after.weights == pytest.approx(expected)


def test_the_order_of_adding_does_not_matter(loaded: LoadedModel) -> None:
    model, whole, before = loaded.model, loaded.model.experts, None
    names = whole.names
    for order in (names, names[::-1], names[2:] + names[:2]):
        model.experts = ExpertLibrary({}, whole.base, whole.banks, whole.ownership, lambda: whole.fingerprint)
        for name in order:
            model.experts.add(whole[name])
        assert model.experts.names == names
        assert before is None or torch.equal(loaded.scores(), before)
        before = loaded.scores()


def test_changes_touch_no_other_expert_and_are_fast(loaded: LoadedModel) -> None:
    library = loaded.model.experts
    loaded.scores()
    library.fingerprint  # noqa: B018 - computed once, at the first change
    first, *rest = library.names
    others = {name: id(library[name]) for name in rest}
    began = time.perf_counter()
    removed = library.remove(first)
    library.add(removed)
    library.replace(first, removed)
    assert time.perf_counter() - began < 5  # benchmarks/library.py shows that it is milliseconds
    assert {name: id(library[name]) for name in rest} == others


def test_temporary_changes_are_undone(loaded: LoadedModel) -> None:
    before = loaded.scores()

    def fail() -> None:
        with loaded.model.experts.changing() as library:
            library.remove(library.names[1])
            library.remove(library.names[1])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(loaded.scores(), before)


def test_experts_are_read_from_disk_when_they_are_first_needed(loaded: LoadedModel) -> None:
    model, inputs = loaded.model, loaded.inputs
    assert not any(expert.loaded for expert in model.experts)
    model.predict(inputs[:1], top=1)
    routed_by_all = model.config.router.add_ownership and model.router is not None  # gates read every ownership score
    assert sum(expert.loaded for expert in model.experts) == (len(model.experts) if routed_by_all else 1)
    assert model.predict(inputs, top=len(model.experts)) == model.predict(inputs)


@pytest.mark.parametrize("part", ["base weights", "backbone", "tokenizer", "feature settings", "classes"])
def test_an_expert_of_another_base_is_refused_with_what_differs(loaded: LoadedModel, part: str) -> None:
    library = loaded.model.experts
    removed = library.remove(library.names[0])
    other = Expert(removed.info | {"base": removed.info["base"] | {part: "other"}}, removed.tensors())
    with pytest.raises(RedxError, match=f"another base: {part} differ"):
        library.add(other)


def test_an_expert_whose_probe_features_differ_is_refused(loaded: LoadedModel) -> None:
    library = loaded.model.experts
    removed = library.remove(library.names[0])
    moved = [[value + 0.1 for value in row] for row in removed.info["base"]["probe"]]
    other = Expert(removed.info | {"base": removed.info["base"] | {"probe": moved}}, removed.tensors())
    with pytest.raises(RedxError, match="features of the probe batch differ"):
        library.add(other)


def test_the_last_expert_and_unknown_names_are_refused(loaded: LoadedModel) -> None:
    library = loaded.model.experts.subset(loaded.model.experts.names[:1])
    (name,) = library.names
    with pytest.raises(RedxError, match="last expert"):
        library.remove(name)
    with pytest.raises(RedxError, match="no expert 'nobody'"):
        library.remove("nobody")
    with pytest.raises(RedxError, match="already"):
        library.add(library[name])


def test_domains_without_an_expert_come_after_the_experts() -> None:
    assert order_domains(["d10", "d9"], ["d1", "d9", "d2"]) == ("d9", "d10", "d1", "d2")
