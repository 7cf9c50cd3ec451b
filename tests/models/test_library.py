"""The library of experts: adding and removing restores every bit, and experts of another base are refused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch

import redx
from redx.composition import rules
from redx.errors import RedxError
from redx.models.composed import Model
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")


QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture
def model(run: Path) -> Model:
    return redx.load(run)


def scores(model: Model) -> torch.Tensor:
    parts = model.parts(QUESTIONS)
    rule = rules.get_rule("red")
    return rules.compose(rule, parts, rule.weights(parts))


@pytest.mark.parametrize("router", ["router", "keys"])
def test_add_then_remove_restores_every_bit(model: Model, router: str) -> None:
    with model.using("red", router=router):
        before = scores(model)
        kept = model.experts.remove("range_41_60")
        assert "range_41_60" not in model.explain(QUESTIONS)[0]["weights"]
        without = scores(model)
        model.experts.add(kept)
        assert torch.equal(scores(model), before)
        model.experts.remove("range_41_60")
        assert torch.equal(scores(model), without)


def test_removal_masks_the_gate_and_shares_out_its_mass(model: Model) -> None:
    whole = model.explain(QUESTIONS)
    with model.using(without=["range_41_60"]):
        for before, after in zip(whole, model.explain(QUESTIONS), strict=True):
            left = 1 - before["weights"].pop("range_41_60")
            assert after["weights"] == pytest.approx({name: share / left for name, share in before["weights"].items()})


def test_the_end_does_not_depend_on_the_order(model: Model) -> None:
    whole, before = model.experts, None
    for order in (NAMES, NAMES[::-1], NAMES[2:] + NAMES[:2]):
        model.experts = ExpertLibrary({}, whole.base, whole.banks, whole.ownership, lambda: whole.fingerprint)
        for name in order:
            model.experts.add(whole[name])
        assert model.experts.names == NAMES
        assert before is None or torch.equal(scores(model), before)
        before = scores(model)


def test_where_no_expert_speaks_the_base_answers_bit_for_bit(model: Model) -> None:
    model.experts.ownership = model.experts.ownership.model_copy(update={"alpha": 1e-9})
    with model.using("red", router="keys"):
        parts = model.parts(QUESTIONS)
        assert not parts.residuals.any()
        assert torch.equal(scores(model), parts.base)


def test_changes_touch_no_other_expert_and_take_no_time(model: Model) -> None:
    scores(model)
    model.experts.fingerprint  # noqa: B018 - worked out once, at the first change
    others = {name: id(model.experts[name]) for name in NAMES[1:]}
    began = time.perf_counter()
    kept = model.experts.remove(NAMES[0])
    model.experts.add(kept)
    model.experts.replace(NAMES[0], kept)
    assert time.perf_counter() - began < 5  # that it is milliseconds, benchmarks/library.py shows
    assert {name: id(model.experts[name]) for name in NAMES[1:]} == others


def test_a_change_for_a_while_is_undone(model: Model) -> None:
    before = scores(model)

    def fail() -> None:
        with model.experts.changing() as library:
            library.remove(NAMES[1])
            library.remove(NAMES[2])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(scores(model), before)


def test_experts_are_read_when_first_asked(model: Model) -> None:
    assert not any(expert.loaded for expert in model.experts)
    model.predict(QUESTIONS[:1], top=1)
    assert sum(expert.loaded for expert in model.experts) == 1
    assert model.predict(QUESTIONS, top=len(NAMES)) == model.predict(QUESTIONS)


@pytest.mark.parametrize("part", ["base weights", "backbone", "tokenizer", "feature settings", "classes"])
def test_an_expert_of_another_base_is_refused_with_what_differs(model: Model, part: str) -> None:
    kept = model.experts.remove(NAMES[0])
    other = Expert(kept.info | {"base": kept.info["base"] | {part: "other"}}, kept.tensors())
    with pytest.raises(RedxError, match=f"another base: {part} differ"):
        model.experts.add(other)


def test_an_expert_whose_probe_differs_is_refused(model: Model) -> None:
    kept = model.experts.remove(NAMES[0])
    moved = [[value + 0.1 for value in row] for row in kept.info["base"]["probe"]]
    other = Expert(kept.info | {"base": kept.info["base"] | {"probe": moved}}, kept.tensors())
    with pytest.raises(RedxError, match="features of the probe batch differ"):
        model.experts.add(other)
