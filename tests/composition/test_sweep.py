"""A noise sweep gives the answers of single evaluations, bit for bit, however it is divided into chunks."""

import pytest
import torch

from helpers.parts import draw_parts
from redx.composition import noise as sweep
from redx.composition.evaluation import certify, predict
from redx.composition.noise import LEVELS, NOISES, noisy_weights
from redx.composition.parts import Cutoffs, Parts
from redx.composition.rules import RULES, contributing
from redx.seeding import generator


@pytest.mark.parametrize("chunk", [1, 37, 2**18])
@pytest.mark.parametrize("name", RULES)
def test_a_sweep_equals_single_evaluations(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "CACHED", chunk)
    monkeypatch.setattr(sweep, "CHUNK", chunk)
    rule, parts = RULES[name], draw_parts()
    clean = certify(rule, parts).predicted
    for kind, answers in sweep.noise_sweep(rule, parts, clean, tuple(NOISES.values()), LEVELS, seed=3):
        for level, predicted in zip(LEVELS, answers, strict=True):
            weights = noisy_weights(rule, parts, kind, level, generator(3, "noise", kind.name, level))
            assert torch.equal(predicted, predict(rule, parts, weights))


def test_a_sweep_respects_cutoffs() -> None:
    drawn = draw_parts()
    sure = torch.randn(drawn.gates.shape, generator=generator(0, "sure"))
    parts = Parts(drawn.base, drawn.residuals, drawn.gates, drawn.labels, drawn.domains, sure, Cutoffs(0.0, 0.5))
    rule = RULES["red"]
    silenced = contributing(rule, parts)
    pairs = [
        sweep.noise_sweep(rule, one, certify(rule, one).predicted, [NOISES["swap"]], [0.0, 1.0], 0)
        for one in (parts, silenced)
    ]
    (_, first), (_, second) = (next(iter(pair)) for pair in pairs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
