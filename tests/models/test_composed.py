"""Composed models: what they predict and explain, and temporary changes."""

from __future__ import annotations

import json
import math

import pytest
import torch

import redx
from helpers.models import LoadedModel
from helpers.own_data import draw_clouds


def test_a_model_explains_what_it_predicts(loaded: LoadedModel) -> None:
    model, inputs = loaded.model, loaded.inputs
    explanations = model.explain(inputs)
    assert [explanation.answer for explanation in explanations] == model.predict(inputs)
    for explanation in explanations:
        assert math.isclose(sum(explanation.weights.values()), 1, rel_tol=1e-5)
        assert 0 <= explanation.radius <= 1
        assert explanation.expert == max(explanation.weights, key=lambda name: explanation.weights[name])
        assert tuple(explanation.weights) == tuple(explanation.contributions) == model.experts.names
        facts = explanation.as_dict()
        assert facts["answer"] == explanation.answer
        assert "abstained" not in facts
        assert json.loads(json.dumps(facts)) == facts
        total = sum(facts["contributions"].values())
        assert not set(facts["active"]) - set(facts["weights"])
        assert bool(facts["active"]) or total == 0


def test_an_explanation_says_what_the_model_would_answer_where_it_abstains(loaded: LoadedModel) -> None:
    model, inputs = loaded.model, loaded.inputs
    plain, asked = model.explain(inputs), model.explain(inputs, abstain=0.3)
    assert [one.answer for one in asked] == model.predict(inputs, abstain=0.3)
    assert [one.closest for one in asked] == [one.answer for one in plain]
    assert [one.abstained for one in asked] == model.is_unfamiliar(inputs, 0.3).tolist()
    assert all((one.answer is None) == one.as_dict()["abstained"] for one in asked)


@pytest.mark.slow
def test_a_regression_answers_with_numbers(toy: redx.Run) -> None:
    model = redx.load(toy.folder)
    pairs = [[12, 5], [90, 99]]
    explanations = model.explain(pairs)
    assert model.predict(pairs) == [explanation.answer for explanation in explanations]
    assert math.isclose(sum(explanations[0].weights.values()), 1, rel_tol=1e-5)
    assert 0 <= explanations[0].radius <= 1
    with model.using(rule="base"):
        assert model.predict(pairs) == [17, 189]


def test_using_is_undone_at_the_end_of_the_block(loaded: LoadedModel) -> None:
    model, inputs = loaded.model, loaded.inputs
    first, *rest, last = model.experts.names
    before = model.parts(inputs)
    with model.using(rule="sum", without=[first, last]):
        assert model.parts(inputs).experts == len(rest)
    assert model.parts(inputs).experts == len(rest) + 2
    assert torch.equal(model.parts(inputs).residuals, before.residuals)
    with pytest.raises(redx.RedxError, match="no expert 'x'"), model.using(without=["x"]):
        pass
    with pytest.raises(redx.RedxError, match="no rule 'x'"), model.using(rule="x"):
        pass


def test_a_seed_that_was_not_run_is_refused(clouds: redx.Run) -> None:
    with pytest.raises(redx.RedxError, match="no seed 7"):
        redx.load(clouds.folder, seed=7)


def test_a_prediction_does_not_depend_on_the_other_inputs(clouds: redx.Run) -> None:
    model, x = redx.load(clouds.folder), draw_clouds(20, seed=3)["x"]
    assert model.predict(x) == [model.predict([row])[0] for row in x.tolist()]


def test_the_rule_decides_which_bank_is_read(clouds: redx.Run) -> None:
    model = redx.load(clouds.folder)
    for rule, form in (("red", "residual"), ("moe", "standalone"), ("global", "pooled")):
        with model.using(rule=rule):
            assert model.rule_and_bank()[1].form == form
    with model.using(rule="red/plain"):
        assert model.rule_and_bank()[1].name == "plain"
    with pytest.raises(redx.RedxError, match="this model has residual bank"), model.using(rule="red/nothing"):
        pass
