"""Ownership scores: how much an example looks like the domain of an expert."""

from __future__ import annotations

import torch

from redx.config import BankConfig, OwnershipConfig
from redx.models.backbones.base import IdentityEncoder
from redx.models.base import Base
from redx.models.ownership import OwnershipScorer, own_class_score


def test_an_expert_claims_the_examples_of_its_own_classes() -> None:
    base = Base(IdentityEncoder(), torch.eye(4), torch.zeros(4), torch.zeros(4), torch.ones(4))
    weights = {"weights.0": torch.zeros(4, 4), "biases.0": torch.zeros(1, 4)}  # it adds nothing to the base's logits
    own = {"classes": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    scorer = OwnershipScorer(OwnershipConfig(bank=BankConfig(shape="linear")), weights | own, base)
    h = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    assert (scorer.ownership_scores(h) > 0).tolist() == [True, False]


def test_the_score_of_own_classes_is_their_log_odds_against_the_others() -> None:
    own = torch.tensor([[True, True, False, False], [False, False, True, True]])
    logits = torch.tensor([[[3.0, 0.0, 0.0, 0.0]] * 2, [[0.0, 0.0, 0.0, 5.0]] * 2])  # (N, K, C)
    scores = own_class_score(logits, own)
    assert (scores > 0).tolist() == [[True, False], [False, True]]
    assert torch.allclose(scores[:, 0], -scores[:, 1])
