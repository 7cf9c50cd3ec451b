"""Experts and ownership scores in closed form."""

from __future__ import annotations

import pytest
import torch

from redx.config import BankConfig, BankId
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.backbones.base import IdentityEncoder
from redx.models.banks import MLPBank, run_bank
from redx.models.base import Base
from redx.training.banks import train_bank, train_scorers
from redx.training.datasets import ExpertData

BANK = BankConfig(shape="mlp", depth=1, hidden=64, activation="relu", fit="ridge", anchor="truth")
PLAIN = BankId("residual", "plain")


def make_base(classes: int = 2) -> Base:
    """A base that says class 0 where the first feature is negative."""
    weight = torch.zeros(2, classes)
    weight[0, -1] = 4.0
    return Base(IdentityEncoder(), weight, torch.zeros(classes), torch.zeros(2), torch.ones(2))


def make_data() -> ExpertData:
    """Own examples, on the right, have labels by the second feature; the anchors on the left are as the base says."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=draw)
    own, other = x[x[:, 0] > 0], x[x[:, 0] <= 0]
    split = Split(own, (own[:, 1] > 0).long(), torch.zeros(len(own), dtype=torch.long))
    anchors = Split(other, torch.zeros(len(other), dtype=torch.long), torch.ones(len(other), dtype=torch.long))
    return ExpertData("right", split, anchors, split)


def test_an_expert_is_right_in_its_domain_and_on_its_anchors() -> None:
    base, data = make_base(), make_data()
    bank = train_bank(PLAIN, BANK, [data], base, 0, 1.0)
    for split in (data.own, data.anchors):
        answers = (base.classify(split.inputs) + run_bank(bank, split.inputs)[:, 0]).argmax(1)
        assert (answers == split.labels).double().mean() > 0.93
    assert (base.classify(data.own.inputs).argmax(1) == data.own.labels).double().mean() < 0.7


def test_the_anchor_size_keeps_residuals_small_and_none_does_not() -> None:
    base, data = make_base(), make_data()

    def size(anchor: str) -> float:
        bank = train_bank(PLAIN, BANK.model_copy(update={"anchor": anchor}), [data], base, 0, 1.0)
        return float(run_bank(bank, data.anchors.inputs).square().mean())

    assert size("size") < 0.5 * size("none")


def test_experts_share_the_random_layer_and_depend_on_the_seed() -> None:
    base, data = make_base(), make_data()
    bank = train_bank(BankId("standalone", "plain"), BANK, [data, data], base, [0, 1], 1.0)
    assert isinstance(bank, MLPBank)
    first, second = bank.weights[0]
    assert not torch.equal(first, second)
    same = train_bank(BankId("standalone", "plain"), BANK, [data, data], base, 0, 1.0)
    assert isinstance(same, MLPBank)
    assert torch.equal(same.weights[0][0], same.weights[0][1])
    assert torch.equal(first, same.weights[0][0])


def test_scores_are_log_odds_of_the_own_domain() -> None:
    data = make_data()
    scorer = train_scorers(BANK, [data], make_base(), 0)
    own, other = (run_bank(scorer, split.inputs)[:, 0, 0] for split in (data.own, data.anchors))
    assert (own > 0).double().mean() > 0.95
    assert (other < 0).double().mean() > 0.95


def test_a_regression_and_the_anchor_margin_are_refused() -> None:
    with pytest.raises(RedxError, match="is a regression"):
        train_bank(PLAIN, BANK, [make_data()], make_base(classes=1), 0, 1.0)
    with pytest.raises(ValueError, match="without the anchor 'margin'"):
        BankConfig.model_validate(BANK.model_dump() | {"anchor": "margin"})
