"""Conformal cut-offs: outside its domain an expert is active at most as often as promised, for any distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from redx.config import BankConfig, OwnershipConfig
from redx.errors import RedxError
from redx.models.backbones.image import IdentityEncoder
from redx.models.base import Base
from redx.models.ownership import (
    OwnershipScorer,
    conformal_cutoff,
    false_activation_rate,
    mask_agreement,
    own_class_score,
)


@given(count=st.integers(1, 300), alpha=st.floats(0.001, 1))
def test_the_cut_off_is_the_promised_order_statistic(count: int, alpha: float) -> None:
    scores = torch.randperm(count, generator=torch.Generator().manual_seed(count)).double()
    cutoff = conformal_cutoff(scores, alpha)
    above = int((scores > cutoff).sum())
    # with this many above among n, a new exchangeable score is above with probability (above + 1) / (n + 1) at most
    if math.isinf(cutoff) and cutoff > 0:
        assert 1 / (count + 1) > alpha - 1e-9
    else:
        assert above / (count + 1) <= alpha
        assert (above + 1) / (count + 1) <= alpha + 1e-9


@pytest.mark.parametrize("alpha", [0.1, 0.01])
@pytest.mark.parametrize("shape", ["normal", "heavy", "discrete"])
def test_new_examples_exceed_the_cut_off_no_more_often_than_promised(alpha: float, shape: str) -> None:
    draw = torch.Generator().manual_seed(5)
    trials, count = 4000, 199
    scores = torch.randn(trials, count + 1, generator=draw)
    scores = {"normal": scores, "heavy": scores.sinh() ** 3, "discrete": scores.round()}[shape]
    exceeded = sum(float(row[-1]) > conformal_cutoff(row[:-1], alpha) for row in scores)
    assert exceeded / trials <= alpha + 3 * math.sqrt(alpha / trials)


def scorer(calibration: Tensor, contradict: bool = False) -> OwnershipScorer:
    """The scorer of an expert that owns classes 0 and 1 of 4; the features are the base's logits, and it adds none."""
    base = Base(IdentityEncoder(), torch.eye(4), torch.zeros(4), torch.zeros(4), torch.ones(4))
    config = OwnershipConfig(contradict=contradict, bank=BankConfig(shape="linear"))
    weights = {"weights.0": torch.zeros(4, 4), "biases.0": torch.zeros(1, 4)}
    own = torch.tensor([1.0, 1.0, 0.0, 0.0])
    return OwnershipScorer(config, weights | {"classes": own, "calibration": calibration}, base)


def test_with_too_few_calibration_examples_an_expert_is_never_active() -> None:
    assert conformal_cutoff(torch.zeros(500), 0.001) == math.inf
    assert conformal_cutoff(torch.zeros(999), 0.001) == 0
    certain = torch.tensor([[1e9, 0.0, 0.0, 0.0]] * 3)
    assert not scorer(torch.zeros(500)).is_active(certain, 0.001).any()
    assert scorer(torch.zeros(999)).is_active(certain, 0.001).all()


def test_an_expert_is_active_where_its_score_exceeds_the_cut_off() -> None:
    h = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    scores = scorer(torch.zeros(9)).scores(h)
    assert (scores > 0).tolist() == [True, False]
    assert scorer(torch.zeros(9)).is_active(h, 0.1).tolist() == [True, False]
    assert scorer(torch.full((9,), 10.0)).is_active(h, 0.1).tolist() == [False, False]


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5])
def test_an_alpha_outside_zero_to_one_is_refused(alpha: float) -> None:
    with pytest.raises(RedxError, match="α"):
        conformal_cutoff(torch.zeros(3), alpha)


def test_the_false_activation_rate_counts_only_examples_outside_the_domain() -> None:
    active = torch.tensor([[True, True], [True, False], [False, True], [True, True]])
    assert false_activation_rate(active, torch.tensor([0, 0, 1, 1])).tolist() == [0.5, 0.5]


def test_the_score_of_own_classes_is_their_log_odds_against_the_others() -> None:
    own = torch.tensor([[True, True, False, False], [False, False, True, True]])
    logits = torch.tensor([[[3.0, 0.0, 0.0, 0.0]] * 2, [[0.0, 0.0, 0.0, 5.0]] * 2])  # (N, K, C)
    scores = own_class_score(logits, own)
    assert (scores > 0).tolist() == [[True, False], [False, True]]
    assert torch.allclose(scores[:, 0], -scores[:, 1])


def test_with_contradict_an_expert_is_inactive_where_the_base_names_one_of_its_classes() -> None:
    own = torch.tensor([[True, True, False, False], [False, False, True, True]])
    scores = mask_agreement(torch.ones(3, 2), torch.tensor([0, 3, 1]), own)
    assert scores.isinf().tolist() == [[True, False], [False, True], [True, False]]
    h = torch.tensor([[1e9, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1e9]])
    active = scorer(torch.empty(0), contradict=True).is_active(h, 1.0)  # α = 1: the cut-off is minus infinity
    assert active.tolist() == [False, True]
