"""Training of banks: every expert sees only its own data, anchors limit it elsewhere, and ownership is calibrated."""

from __future__ import annotations

import pytest
import torch

from helpers.models import draw_expert_datasets, draw_features, identity_base
from redx.config import BankConfig, BankId, OwnershipConfig, TrainingConfig
from redx.data.dataset import Split
from redx.models.banks import build_bank, run_bank
from redx.models.ownership import OwnershipScorer
from redx.models.router import NetworkRouter, initialise_router
from redx.runs.presets import configure
from redx.seeding import generator
from redx.training.banks import anchor_loss, losses, train_bank, train_jointly, train_ownership, train_pooled

SHORT = TrainingConfig(epochs=5, batch=32, virtual_batch=32, lr=1e-2)


@pytest.mark.parametrize("name", ["residual/plain", "residual/anchored", "standalone/plain", "standalone/anchored"])
def test_training_one_expert_leaves_the_others_alone(name: str) -> None:
    bank_id = BankId.parse(name)
    settings = configure("mnist", "quick").banks[bank_id]
    train = draw_features(400)
    moved = train.inputs.clone()
    moved[train.domains == 2] += 1
    banks = [
        train_bank(bank_id, settings, draw_expert_datasets(split), identity_base(), 0, 1.0)
        for split in (train, Split(moved, train.labels, train.domains))
    ]
    for one, other in zip(*(bank.parameters() for bank in banks), strict=True):
        assert [torch.equal(one[k], other[k]) for k in range(5)] == [True, True, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["truth", "size", "margin"])
def test_anchors_keep_an_expert_from_breaking_answers_outside_its_domain(anchor: str) -> None:
    train, test, base = draw_features(400), draw_features(300, 3), identity_base()
    plain = configure("mnist", "quick").banks[BankId("residual", "plain")]
    anchored = plain.model_copy(update={"anchor": anchor, "anchor_weight": 5.0})
    broken_shares = []
    for settings in (plain, anchored):
        settings = settings.model_copy(update={"training": settings.training.model_copy(update={"epochs": 40})})
        bank = train_bank(BankId("residual", "x"), settings, draw_expert_datasets(train), base, 0, 1.0)
        logits, residuals = base.classify(test.inputs), run_bank(bank, test.inputs)  # (N, C), (N, K, C)
        outside = (test.domains[:, None] != torch.arange(5)) & (logits.argmax(-1) == test.labels)[:, None]
        broken = (logits[:, None] + residuals).argmax(-1) != test.labels[:, None]
        broken_shares.append(float(broken[outside].double().mean()))
    assert broken_shares[1] < broken_shares[0] / 2


def test_the_loss_of_each_learner_is_its_own_mean() -> None:
    logits, labels = torch.randn(2, 6, 3, generator=generator(0)), torch.tensor([[0, 1, 2] * 2] * 2)
    expected = [torch.nn.functional.cross_entropy(logits[k], labels[k]) for k in range(2)]
    assert torch.allclose(losses(logits, labels, 1.0), torch.stack(expected))
    outputs, answers = torch.tensor([[[0.5], [1.0]]]), torch.tensor([[10, 20]])
    assert torch.allclose(losses(outputs, answers, 0.1), torch.tensor([(0.25 + 1) / 2]))  # a regression in units of 0.1


def test_anchor_terms_are_zero_for_an_expert_that_changes_nothing() -> None:
    start, labels = torch.tensor([[[2.0, 0.0, 1.0]]]), torch.tensor([[0]])
    nothing, away = torch.zeros(1, 1, 3), torch.tensor([[[-2.0, 0.0, 0.0]]])
    assert anchor_loss("size", start, nothing, labels) == 0
    assert anchor_loss("margin", start, nothing, labels) == 0
    assert anchor_loss("size", start, away, labels) == pytest.approx(4 / 3)
    assert anchor_loss("margin", start, away, labels) == pytest.approx(0.9 * 1 + 1)  # from lead 1 to lead -1
    assert torch.allclose(anchor_loss("truth", start, away, labels), losses(start + away, labels, 1.0))
    assert torch.allclose(anchor_loss("size", None, away, labels), losses(away, labels, 1.0))  # a head has no base


@pytest.mark.parametrize("score", ["classes", "binary"])
def test_ownership_scores_are_higher_in_the_own_domain(score: str) -> None:
    training = SHORT.model_copy(update={"epochs": 20})
    bank = BankConfig(shape="mlp", hidden=16, depth=1, anchor="truth", training=training)
    config = OwnershipConfig.model_validate({"kind": score, "bank": bank.model_dump()})
    base, datasets = identity_base(), draw_expert_datasets(draw_features(400))
    for data, tensors in zip(datasets, train_ownership(config, datasets, base, 0), strict=True):
        scorer = OwnershipScorer(config, tensors, base)
        assert (
            float(scorer.ownership_scores(data.own.inputs).mean())
            > float(scorer.ownership_scores(data.anchors.inputs).mean()) + 1
        )
        if score == "classes":
            assert tensors["classes"].nonzero()[:, 0].tolist() == data.own.labels.unique().tolist()


def test_pooled_heads_are_trained_on_all_data() -> None:
    config = configure("features", "quick", file="x.npz", epochs={"experts": 2})
    train = draw_features(100)
    tensors = train_pooled(config, identity_base(), train, draw_features(50, 1), 0, 1.0)
    assert {name.partition(".")[0] for name in tensors} == {str(bank_id) for bank_id in config.of_form("pooled")}


def test_joint_training_changes_copies_only() -> None:
    base, train = identity_base(), draw_features(200)
    bank = build_bank(BankConfig(shape="linear"), 5, base)
    router = NetworkRouter(16, 5, hidden=8)
    initialise_router(router, generator(0, "router"))
    before = [parameter.clone() for parameter in (*bank.parameters(), *router.parameters())]
    joint_bank, joint_router = train_jointly(SHORT, bank, router, base, train, 0)
    after = [*bank.parameters(), *router.parameters()]
    joint = [*joint_bank.parameters(), *joint_router.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(before, joint, strict=True))
