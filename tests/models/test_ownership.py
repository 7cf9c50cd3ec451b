"""The conformal cut-off: an expert speaks out of turn at most as often as promised, whatever the distribution."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redx.errors import RedxError
from redx.models.ownership import conformal_cutoff, false_activation_rate, is_active, mask_agreement, own_class_score


@given(count=st.integers(1, 300), alpha=st.floats(0.001, 1))
def test_the_cut_off_is_the_promised_order_statistic(count: int, alpha: float) -> None:
    scores = torch.randperm(count, generator=torch.Generator().manual_seed(count)).double()
    found = conformal_cutoff(scores, alpha)
    above = int((scores > found).sum())
    # with this many above among n, a new exchangeable score is above with probability (above + 1) / (n + 1) at most
    if math.isinf(found) and found > 0:
        assert 1 / (count + 1) > alpha - 1e-9
    else:
        assert above / (count + 1) <= alpha
        assert (above + 1) / (count + 1) <= alpha + 1e-9


@pytest.mark.parametrize("alpha", [0.1, 0.01])
@pytest.mark.parametrize("shape", ["normal", "heavy", "discrete"])
def test_new_examples_exceed_it_no_more_often_than_promised(alpha: float, shape: str) -> None:
    draw = torch.Generator().manual_seed(5)
    trials, count = 4000, 199
    scores = torch.randn(trials, count + 1, generator=draw)
    scores = {"normal": scores, "heavy": scores.sinh() ** 3, "discrete": scores.round()}[shape]
    exceeded = sum(float(row[-1]) > conformal_cutoff(row[:-1], alpha) for row in scores)
    assert exceeded / trials <= alpha + 3 * math.sqrt(alpha / trials)


def test_too_few_examples_keep_the_expert_silent() -> None:
    assert conformal_cutoff(torch.zeros(500), 0.001) == math.inf
    assert conformal_cutoff(torch.zeros(999), 0.001) == 0
    assert not is_active(torch.full((3, 1), 1e9), torch.tensor([math.inf])).any()


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5])
def test_a_share_is_a_share(alpha: float) -> None:
    with pytest.raises(RedxError, match="α"):
        conformal_cutoff(torch.zeros(3), alpha)


def test_out_of_turn_counts_only_strangers() -> None:
    spoken = torch.tensor([[True, True], [True, False], [False, True], [True, True]])
    assert false_activation_rate(spoken, torch.tensor([0, 0, 1, 1])).tolist() == [0.5, 0.5]


def test_scores_by_classes_ask_who_leads() -> None:
    own = torch.tensor([[True, True, False, False], [False, False, True, True]])
    logits = torch.tensor([[[3.0, 0.0, 0.0, 0.0]] * 2, [[0.0, 0.0, 0.0, 5.0]] * 2])  # (N, K, C)
    scores = own_class_score(logits, own)
    assert (scores > 0).tolist() == [[True, False], [False, True]]
    assert torch.allclose(scores[:, 0], -scores[:, 1])


def test_an_expert_that_only_contradicts_is_silent_where_the_base_names_it() -> None:
    own = torch.tensor([[True, True, False, False], [False, False, True, True]])
    scores = mask_agreement(torch.ones(3, 2), torch.tensor([0, 3, 1]), own)
    assert scores.isinf().tolist() == [[True, False], [False, True], [True, False]]
    assert not is_active(scores, torch.tensor([-math.inf, -math.inf]))[0, 0]
