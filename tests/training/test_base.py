"""Training of the base: given, on features, with early stopping, and on values in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helpers.models import DOMAINS, draw_features
from redx.config import BaseConfig, TrainingConfig
from redx.data.dataset import Data
from redx.models.encoder import FeatureEncoder
from redx.models.trunks import MLPTrunk, TokenSum
from redx.runs.presets import configure
from redx.seeding import generator
from redx.training.base import (
    START,
    fit_base,
    set_class_values,
    solve_feature_base,
    start_from_means,
    train_base,
)

TRAINING = TrainingConfig(epochs=40, batch=64, virtual_batch=64, lr=1e-2)


def data() -> Data:
    splits = draw_features(400), draw_features(100, 1), draw_features(100, 2)
    return Data(*splits, tuple(DOMAINS), tuple(map(str, range(10))), "disjoint", 0.0)


def test_a_base_that_the_task_gives_is_not_trained() -> None:
    weight, bias = torch.randn(16, 10), torch.randn(10)
    base = train_base(configure("toy", "quick"), replace(data(), given_base=(weight, bias)), seed=0)
    x = draw_features(5).inputs
    assert torch.equal(base.classify(base.embed(x)), x @ weight + bias)


def test_the_base_of_a_run_learns_from_the_shared_subset() -> None:
    config = configure("features", "quick", file="x.npz", share=0.5, epochs={"base": 40})
    first, again, other = (train_base(config, data(), seed) for seed in (0, 0, 1))
    test = draw_features(200, 3)
    right = first.classify(first.embed(test.inputs)).argmax(-1) == test.labels
    assert float(right.double().mean()) > 0.8
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in first.tensors().items())
    assert not torch.equal(first.weight, other.weight)


def test_a_feature_base_is_solved_and_gives_its_inputs_to_the_experts() -> None:
    encoder = FeatureEncoder(MLPTrunk(16, 16, 0, append_features=False))
    base = solve_feature_base(encoder, draw_features(300), [str(label) for label in range(10)])
    assert (len(base.weight), base.width, base.outputs) == (16, 16, 10)
    test = draw_features(200, 3)
    right = base.classify(base.embed(test.inputs)).argmax(-1) == test.labels
    assert float(right.double().mean()) > 0.8


@pytest.mark.parametrize("patience", [None, 1])
def test_early_stopping_needs_validation_and_patience(patience: int | None) -> None:
    evaluated: list[int] = []

    class Counting(FeatureEncoder):
        def forward(self, x: Tensor) -> Tensor:
            evaluated.extend([] if self.training else [len(x)])
            return super().forward(x)

    trunk = MLPTrunk(16, 8, 1, append_features=False)
    training = TRAINING.model_copy(update={"epochs": 4, "patience": patience})
    fit_base(Counting(trunk), BaseConfig(training=training), draw_features(50), draw_features(20, 1), 10, 0)
    # after training the shared subset is embedded once; with patience, validation is scored after every epoch
    assert evaluated == ([50] if patience is None else [20] * (len(evaluated) - 1) + [50])
    assert (len(evaluated) > 1) == (patience is not None)


def test_a_classifier_can_start_from_the_mean_of_every_class() -> None:
    shared, test = draw_features(30), draw_features(200, 3)
    trained = TRAINING.model_copy(update={"epochs": 1, "lr": 1e-9, "weight_decay": 0.0})

    def accuracy(start: str) -> float:
        torch.manual_seed(0)
        encoder = FeatureEncoder(MLPTrunk(16, 16, 0, append_features=False))
        encoder.fit(shared.inputs)
        base = fit_base(encoder, BaseConfig.model_validate({"start": start, "training": trained}), shared, None, 10, 0)
        return float((base.classify(base.embed(test.inputs)).argmax(-1) == test.labels).double().mean())

    assert accuracy("means") > 0.8 > 0.5 > accuracy("random")


def test_a_class_without_examples_keeps_its_random_weights() -> None:
    shared = draw_features(30)
    shared = shared.only((shared.labels != 4).nonzero()[:, 0])
    encoder, classifier = FeatureEncoder(MLPTrunk(16, 16, 0, append_features=False)), nn.Linear(16, 10)
    before = classifier.weight.detach().clone()
    start_from_means(encoder, classifier, shared)
    assert torch.equal(classifier.weight[4], before[4])
    others = torch.arange(10) != 4
    assert torch.allclose(classifier.weight[others].norm(dim=-1), torch.full((9,), START / 4))
    assert not classifier.bias.any()


def test_classes_in_order_answer_best_at_their_own_values() -> None:
    trunk, classifier = TokenSum(6, hidden=8, depth=1, append_features=False), nn.Linear(64, 99)
    values = set_class_values(trunk, classifier)
    assert (values.diff() > 0).all()
    assert torch.allclose(values, -values.flip(0))
    assert torch.equal(classifier(trunk.code(values)).argmax(-1), torch.arange(99))
    noisy = values + 0.2 * values.diff()[0] * (2 * torch.rand(99, generator=generator(0)) - 1)
    assert torch.equal(classifier(trunk.code(noisy)).argmax(-1), torch.arange(99))
