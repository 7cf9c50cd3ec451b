"""The laws of every composition rule; a new rule is tested here without new test code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given

import redx
from helpers.parts import any_parts, draw_parts, reorder_experts
from redx.composition import rules
from redx.composition.evaluation import certify, predict
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import RULES, Rule, compose
from redx.config import BankId
from redx.errors import RedxError

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


simplex_rules = pytest.mark.parametrize(
    "rule", [r for r in RULES.values() if r.adversary == "simplex"], ids=lambda r: r.name
)


@every_rule
@given(any_parts())
def test_zero_weights_give_the_base_bit_for_bit(rule: Rule, parts: Parts) -> None:
    assert torch.equal(compose(rule, parts, torch.zeros_like(parts.gates)), rule.read(parts.base))


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_hot_weights_give_that_expert_exactly(rule: Rule, dtype: torch.dtype) -> None:
    parts = draw_parts(dtype=dtype)
    for k in range(parts.experts):
        alone = torch.zeros_like(parts.gates)
        alone[:, k] = 1
        outputs = rule.read(parts.residuals[:, k])
        scores = compose(rule, parts, alone)
        assert torch.equal(scores, parts.base + outputs if rule.keeps_base else outputs)
        assert torch.equal(scores, rules.vertex_scores(rule, parts)[:, k])


@every_rule
@pytest.mark.parametrize("experts", [0, 1])
@pytest.mark.parametrize("classes", [1, 4])
def test_no_expert_is_the_base_and_one_expert_is_that_expert(rule: Rule, experts: int, classes: int) -> None:
    parts = draw_parts(experts=experts, classes=classes)
    weights = rule.weights(parts)
    certified = certify(rule, parts)
    assert weights.shape == (len(parts), experts)
    no_expert = experts == 0 or isinstance(rule, rules.BaseRule)
    expected = rule.read(parts.base) if no_expert else rules.vertex_scores(rule, parts)[:, 0]
    assert torch.allclose(compose(rule, parts, weights), expected)
    assert torch.equal(certified.predicted, predicted_classes(expected))
    assert torch.equal(certified.radius, torch.ones(len(parts), dtype=torch.float64)) or rule.adversary == "box"


@every_rule
@given(any_parts())
def test_weights_lie_where_the_adversary_may_move_them(rule: Rule, parts: Parts) -> None:
    weights = rule.weights(parts)
    assert weights.min() >= 0
    assert weights.max() <= 1
    if rule.adversary == "simplex":
        assert torch.allclose(weights.sum(-1), torch.ones(len(parts), dtype=weights.dtype))


@every_rule
def test_the_order_of_experts_does_not_matter(rule: Rule) -> None:
    parts, order = draw_parts(experts=5), [3, 0, 4, 2, 1]
    moved = reorder_experts(parts, order)
    assert torch.allclose(rule.weights(moved), rule.weights(parts)[:, order], rtol=1e-12)
    assert torch.allclose(
        compose(rule, moved, rule.weights(moved)), compose(rule, parts, rule.weights(parts)), rtol=1e-12
    )


@every_rule
@pytest.mark.parametrize("numbers", [1, 100, 999])
def test_chunks_give_the_same_predictions(rule: Rule, numbers: int) -> None:
    parts = draw_parts(examples=500, experts=7, classes=11, dtype=torch.float32)
    whole = predicted_classes(compose(rule, parts, rule.weights(parts)))
    pieces = [predicted_classes(compose(rule, piece, rule.weights(piece))) for _, piece in parts.chunks(numbers)]
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(predict(rule, parts, rule.weights(parts)), whole)


def test_red_is_the_base_plus_the_routed_corrections() -> None:
    parts = draw_parts()
    expected = parts.base + (parts.gates.softmax(-1)[..., None] * parts.residuals).sum(1)
    assert torch.allclose(compose(RULES["red"], parts, RULES["red"].weights(parts)), expected, rtol=1e-12)


def test_fixed_adds_the_mean_correction_and_sum_adds_all() -> None:
    parts = draw_parts()
    for name, total in {"fixed": parts.residuals.mean(1), "sum": parts.residuals.sum(1)}.items():
        assert torch.allclose(compose(RULES[name], parts, RULES[name].weights(parts)), parts.base + total, rtol=1e-12)


def test_moe_mixes_the_logits_of_the_heads() -> None:
    parts = draw_parts()
    expected = (parts.gates.softmax(-1)[..., None] * parts.residuals).sum(1)
    assert torch.allclose(compose(RULES["moe"], parts, RULES["moe"].weights(parts)), expected, rtol=1e-12)


def test_uniform_averages_probabilities_and_a_regression_averages_outputs() -> None:
    rule = RULES["uniform"]
    parts, outputs = draw_parts(), draw_parts(classes=1)
    expected = parts.residuals.softmax(-1).mean(1)
    scores = compose(rule, parts, rule.weights(parts))
    assert torch.allclose(scores, expected, rtol=1e-12)
    assert torch.allclose(rules.to_logits(rule, scores).softmax(-1), expected, rtol=1e-12)
    assert torch.allclose(compose(rule, outputs, rule.weights(outputs)), outputs.residuals.mean(1), rtol=1e-12)


@pytest.mark.parametrize("name", ["oracle", "red-oracle"])
def test_the_oracle_answers_as_the_owner_and_without_an_owner_as_the_base(name: str) -> None:
    rule, parts = RULES[name], draw_parts(experts=3)
    rows = torch.arange(len(parts))
    owner = rules.vertex_scores(rule, parts)[rows, parts.domains]
    assert torch.equal(compose(rule, parts, rule.weights(parts)), owner)
    stranger = replace(parts, domains=torch.full_like(parts.true_domains(), 7))
    assert torch.equal(compose(rule, stranger, rule.weights(stranger)), parts.base)


@simplex_rules
def test_scores_at_the_vertices_mix_to_the_scores(rule: Rule) -> None:
    parts = draw_parts()
    weights = rule.weights(parts)
    mixed = (weights[..., None] * rules.vertex_scores(rule, parts)).sum(1)
    assert torch.allclose(compose(rule, parts, weights), mixed, rtol=1e-10)


def test_rules_are_found_by_name_and_others_refused() -> None:
    assert all(rules.get_rule(name).name == name for name in RULES)
    with pytest.raises(RedxError, match="choose one of base, statistics, red"):
        rules.get_rule("majority")


def test_a_rule_from_outside_has_a_row_words_and_a_colour() -> None:
    from redx.composition.evaluation import evaluate
    from redx.composition.summary import summarise
    from redx.config import BankId
    from redx.report.colours import colour_of, label_of
    from redx.report.content import Line
    from redx.report.panels import line_colours
    from redx.report.tables import glossary
    from redx.report.words import name_of

    @RULES.register("first", adversary="simplex", label="first expert")
    def first(parts: Parts) -> torch.Tensor:
        """The base plus the residual of the first expert."""
        return torch.eye(parts.experts, dtype=parts.base.dtype)[:1].expand(len(parts), -1)

    try:
        parts = draw_parts(20, 3, 4)
        banks = {BankId("residual", "plain"): parts}
        rows = evaluate(banks, task="t", seed=0, domains=("a", "b", "c"), kinds=["swap"])
        summary = summarise(rows, {"residual": "plain"}, 20)
        expected = (parts.base + parts.residuals[:, 0]).argmax(-1) == parts.labels
        assert summary["first"]["accuracy"]["mean"] == pytest.approx(float(expected.double().mean()))
        assert (label_of("first"), name_of("first"), colour_of("first")) == ("first expert", "first expert", None)
        lines = (Line("red", (), ()), Line("first", (), ()))
        assert len(set(line_colours(lines).values())) == 2
        assert ("first", "The base plus the residual of the first expert.") in glossary()[0].rows
        with pytest.raises(RedxError, match="already"):
            RULES.register("first", lambda parts: parts.gates)
        with pytest.raises(RedxError, match="no attribute 'colr'"):
            RULES.register("second", lambda parts: parts.gates, colr="#000000")
        with pytest.raises(RedxError, match=r"no redx\.Rule"):
            RULES.register("second", 3)
    finally:
        RULES.unregister("first")


@pytest.mark.parametrize("name", ["base", "red", "fixed", "sum", "moe", "uniform"])
def test_rules_are_taken_by_name_everywhere(name: str) -> None:
    parts, rule = draw_parts(20, 3, 4), RULES[name]
    assert torch.equal(redx.compose(name, parts), compose(rule, parts, rule.weights(parts)))
    assert torch.equal(redx.predict(name, parts), redx.predict(rule, parts))
    assert torch.equal(redx.certify(name, parts).radius, redx.certify(rule, parts).radius)
    bank = BankId(rule.form, "plain")
    rows = redx.evaluate({bank: parts}, task="t", seed=0, domains=("a", "b", "c"), rules=[name], kinds=[])
    assert {row["rule"] for row in rows} == {name}
