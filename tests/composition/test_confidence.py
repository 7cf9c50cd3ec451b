"""Confidences: every score by hand, and finite whatever goes in."""

from __future__ import annotations

import pytest
import torch

from redx.composition.confidence import SCORES, answer_log_odds, confidences, contest
from redx.errors import RedxError

BASE = torch.tensor([[1.0, 0.0, -1.0]])
RESIDUALS = torch.tensor([[[0.0, 4.0, 0.0], [0.0, 0.0, 0.0]]])
CLAIMS = torch.tensor([[2.0, -3.0]])


def test_log_odds_are_those_of_the_softmax() -> None:
    share = BASE.softmax(-1).amax(-1)
    assert torch.allclose(answer_log_odds(BASE), (share / (1 - share)).log())


def test_every_score_by_hand() -> None:
    answer = torch.stack([answer_log_odds(BASE[0] + RESIDUALS[0, k]) for k in range(2)])[None]
    base = answer_log_odds(BASE)
    expected = {
        "ownership": CLAIMS,
        "answer": answer,
        "both": CLAIMS + answer,
        "gain": answer - base,
        "all": CLAIMS + answer - base,
        "contest": contest(CLAIMS) + answer - base,
    }
    assert set(expected) == set(SCORES)
    for score, values in expected.items():
        assert torch.allclose(confidences(score, BASE, RESIDUALS, CLAIMS), values), score
    assert confidences("gain", BASE, RESIDUALS, CLAIMS)[0, 1] == 0  # an expert that adds nothing gains nothing


@pytest.mark.parametrize("score", list(SCORES))
def test_scores_are_finite_for_infinite_claims_and_huge_logits(score: str) -> None:
    ownership = torch.tensor([[torch.inf, -torch.inf]])
    for scale in (1.0, 1e30):
        assert bool(confidences(score, BASE * scale, RESIDUALS * scale, ownership).isfinite().all())


def test_a_regression_has_no_answer_that_is_more_probable() -> None:
    base, residuals = torch.tensor([[3.0]]), torch.tensor([[[1.0], [9.0]]])
    assert torch.equal(confidences("both", base, residuals, CLAIMS), CLAIMS)


@pytest.mark.parametrize(
    "ownership", [[[2.0, -3.0, 1.0]], [[5.0, 5.0, 5.0]], [[-9.0, -8.0, -1.0]], [[80.0, 1.0, 79.0]]]
)
def test_a_contest_is_the_log_odds_of_the_softmax_with_none(ownership: list[list[float]]) -> None:
    values = torch.tensor(ownership, dtype=torch.float64)
    shares = torch.cat([values, torch.zeros(1, 1, dtype=torch.float64)], 1).softmax(-1)[:, :-1]
    others = torch.stack([shares.sum(-1) - shares[:, k] for k in range(3)], 1) + 1 / (1 + values.exp().sum(-1)[:, None])
    assert torch.allclose(contest(values), shares.log() - others.log(), atol=1e-6)


def test_a_contest_of_one_is_its_claim() -> None:
    ownership = torch.linspace(-40, 40, 33)[:, None]
    assert torch.allclose(contest(ownership), ownership, atol=1e-5)
    assert contest(ownership[:, :0]).shape == (33, 0)


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(RedxError, match="no score 'best'; choose one of ownership"):
        confidences("best", BASE, RESIDUALS, CLAIMS)
