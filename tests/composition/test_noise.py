"""The laws of every kind of noise, and the exact meaning of each level; a new kind needs no new test code."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from helpers.parts import draw_parts
from redx.composition.noise import LEVELS, NOISES, Noise, check_level, get_noise, noisy_weights
from redx.composition.rules import RULES, Rule, compose
from redx.errors import RedxError
from redx.seeding import generator

every_kind = pytest.mark.parametrize("noise", NOISES.values(), ids=list(NOISES))


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


MANY = 20_000  # examples where a share is measured: its standard error is below 0.004


def apply(name: str, values: Tensor, level: float, seed: int = 0, simplex: bool = True) -> Tensor:
    return NOISES[name](values, level, generator(seed, "test"), simplex=simplex)


def on_simplex(weights: Tensor) -> Tensor:
    return (weights >= 0).all(-1) & ((weights.sum(-1) - 1).abs() < 1e-12)


@every_kind
@every_rule
def test_level_zero_is_the_identity_bit_for_bit(noise: Noise, rule: Rule) -> None:
    for experts in (0, 1, 2, 5):
        parts = draw_parts(experts=experts, dtype=torch.float32)
        weights = noisy_weights(rule, parts, noise, 0.0, generator(1))
        assert torch.equal(weights, rule.weights(parts))
        assert torch.equal(compose(rule, parts, weights), compose(rule, parts, rule.weights(parts)))


@every_kind
@every_rule
def test_the_generator_decides_every_draw(noise: Noise, rule: Rule) -> None:
    parts = draw_parts()
    torch.manual_seed(0)
    first = noisy_weights(rule, parts, noise, 0.5, generator(1))
    torch.manual_seed(1)
    assert torch.equal(first, noisy_weights(rule, parts, noise, 0.5, generator(1)))


@pytest.mark.parametrize("name", ["swap", "jitter", "drop", "permute"])
def test_another_generator_draws_otherwise(name: str) -> None:
    gates = draw_parts().gates
    assert not torch.equal(apply(name, gates, 0.5, seed=1), apply(name, gates, 0.5, seed=2))


@every_kind
@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.adversary == "simplex"], ids=lambda r: r.name)
def test_weights_stay_on_the_simplex_or_none_is_left(noise: Noise, rule: Rule) -> None:
    for experts, level in itertools.product((1, 2, 5), LEVELS):
        parts = draw_parts(examples=200, experts=experts)
        weights = noisy_weights(rule, parts, noise, level, generator(2))
        no_expert = (weights == 0).all(-1)
        assert (on_simplex(weights) | no_expert).all(), (experts, level)
        assert noise.name == "drop" or not no_expert.any(), (experts, level)


@every_kind
@pytest.mark.parametrize("level", LEVELS)
def test_noise_reaches_only_rules_that_can_be_misrouted(noise: Noise, level: float) -> None:
    parts = draw_parts()
    for rule in RULES.values():
        if rule.adversary is None or not (rule.routed or noise.reaches_unrouted):
            assert torch.equal(noisy_weights(rule, parts, noise, level, generator(3)), rule.weights(parts))


@pytest.mark.parametrize("level", [0.25, 0.5, 1.0])
def test_swap_hits_its_share_and_spreads_evenly_over_the_others(level: float) -> None:
    weights = draw_parts(MANY, experts=4).gates.softmax(-1)
    swapped = apply("swap", weights, level)
    hit = (swapped != weights).any(-1)
    away = (swapped[hit].argmax(-1) - weights[hit].argmax(-1)) % 4
    assert hit.double().mean().item() == pytest.approx(level, abs=0.015)
    assert (swapped[hit].amax(-1) == 1).all()
    assert on_simplex(swapped[hit]).all()
    shares = away.bincount(minlength=4) / len(away)
    assert shares[0] == 0  # never the first choice
    assert torch.allclose(shares[1:], torch.tensor(1 / 3), atol=0.03)


@pytest.mark.parametrize("level", LEVELS)
def test_blur_moves_towards_equal_weights(level: float) -> None:
    weights = draw_parts(experts=5).gates.softmax(-1)
    assert torch.allclose(apply("blur", weights, level), (1 - level) * weights + level / 5, rtol=1e-14)
    assert torch.equal(apply("blur", weights, 1.0), torch.full_like(weights, 1 / 5))


@pytest.mark.parametrize("level", [0.1, 0.5, 1.0])
def test_jitter_has_four_times_the_deviation_of_the_gates(level: float) -> None:
    gates = 3 * draw_parts(MANY).gates + 7
    added = apply("jitter", gates, level) - gates
    assert float(added.std() / gates.std()) == pytest.approx(4 * level, rel=0.02)
    assert float(added.mean() / added.std()) == pytest.approx(0, abs=0.02)


def test_jitter_of_equal_gates_changes_nothing() -> None:
    gates = torch.full((10, 3), 2.5)
    assert torch.equal(apply("jitter", gates, 1.0), gates)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.adversary])
def test_when_all_experts_drop_the_base_answers(name: str) -> None:
    rule, parts = RULES[name], draw_parts()
    weights = noisy_weights(rule, parts, NOISES["drop"], 1.0, generator(4))
    assert torch.equal(compose(rule, parts, weights), rule.read(parts.base))


def test_drop_misses_its_share_and_renormalises_the_rest() -> None:
    weights = draw_parts(MANY).gates.softmax(-1)
    left = apply("drop", weights, 0.25)
    missing = left == 0
    rest = weights.masked_fill(missing, 0)
    rest = rest / rest.sum(-1, keepdim=True)
    assert missing.double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.allclose(left, rest.nan_to_num(0), rtol=1e-12)


def test_drop_renormalises_even_the_smallest_weight() -> None:
    weights = torch.tensor([[0.0, -95.0]]).softmax(-1).expand(50, 2)  # the second is subnormal in float32
    left = apply("drop", weights, 0.5)
    assert set(left.sum(-1).tolist()) == {0.0, 1.0}
    assert (left[:, 1] == 1).any()


def test_drop_takes_from_a_sum_without_renormalising() -> None:
    parts = draw_parts()
    weights = noisy_weights(RULES["sum"], parts, NOISES["drop"], 0.5, generator(5))
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert weights.sum(-1).unique().numel() > 2


@pytest.mark.parametrize("experts", [2, 3, 4, 7, 10])
@pytest.mark.parametrize("level", LEVELS)
def test_permute_deranges_its_share_of_the_columns(experts: int, level: float) -> None:
    gates = draw_parts(MANY, experts).gates
    moved = apply("permute", gates, level)
    strays = (moved != gates).double().mean(-1)  # (N,) the values of a row are all different
    assert torch.equal(moved.sort(-1).values, gates.sort(-1).values)
    assert not (strays * experts == 1).any()
    assert strays.mean().item() == pytest.approx(level, abs=0.015)
    assert level < 1 or (strays == 1).all()


def test_permute_sends_every_expert_everywhere() -> None:
    columns = torch.arange(4).expand(MANY, 4)
    moved = apply("permute", columns, 1.0)
    for expert in range(4):
        shares = moved[:, expert].bincount(minlength=4) / MANY
        assert shares[expert] == 0
        assert torch.allclose(shares[torch.arange(4) != expert], torch.tensor(1 / 3), atol=0.02)


def test_kinds_are_found_by_name_and_others_refused() -> None:
    assert all(get_noise(name).name == name for name in NOISES)
    with pytest.raises(RedxError, match="choose one of swap, blur"):
        get_noise("flip")


@pytest.mark.parametrize("level", [-0.1, 1.1, float("nan")])
def test_a_level_outside_zero_to_one_is_refused(level: float) -> None:
    with pytest.raises(RedxError, match="between 0 and 1"):
        check_level(level)
    with pytest.raises(RedxError, match="between 0 and 1"):
        noisy_weights(RULES["red"], draw_parts(), NOISES["swap"], level)
