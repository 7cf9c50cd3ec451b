"""Heads in closed form: the predictions of scikit-learn, as banks that are saved and loaded like all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from torch import Tensor

import redx
from helpers.models import CLASSES, FEATURES, draw_features, identity_base
from helpers.own_data import draw_clouds, write_arrays
from redx.config import BankConfig, BankId
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.models.backbones.base import IdentityEncoder
from redx.models.banks import MLPBank, run_bank
from redx.models.base import Base
from redx.runs.presets import configure
from redx.training.closed_form import (
    PENALTIES,
    draw_projection,
    fit_bank,
    fit_lda,
    fit_means,
    fit_ridge,
    fit_temperature,
)

RIDGE = BankConfig(shape="mlp", depth=1, activation="relu", hidden=40, fit="ridge")
CONFIGS = {
    "means": BankConfig(shape="linear", fit="means"),
    "lda": BankConfig(shape="linear", fit="lda"),
    "ridge": RIDGE,
}
NOTHING = draw_features(0)


def fit(name: str, train: Split, validation: Split = NOTHING, seed: int = 0) -> MLPBank:
    return fit_bank(BankId("pooled", name), CONFIGS[name], train, validation, identity_base(), seed)


def answers(bank: MLPBank, x: Tensor) -> Tensor:
    return run_bank(bank, x)[:, 0].argmax(-1)


def arrays(split: Split) -> tuple[Any, Any]:
    return split.inputs.double().numpy(), split.labels.numpy()


# --- equal to scikit-learn


@pytest.mark.parametrize("seed", range(3))
def test_class_means_predict_what_scikit_learn_predicts(seed: int) -> None:
    train, test = draw_features(200, seed), draw_features(500, seed + 10)
    expected = NearestCentroid().fit(*arrays(train)).predict(test.inputs.double().numpy())
    assert answers(fit("means", train), test.inputs).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, CLASSES])
def test_discriminant_analysis_predicts_what_scikit_learn_predicts(seed: int, classes: int) -> None:
    train, test = draw_features(200, seed), draw_features(500, seed + 10)
    train = train.only(train.labels < classes)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(*arrays(train))
    expected = model.predict_proba(test.inputs.double().numpy())
    bank = fit("lda", train)
    assert answers(bank, test.inputs).tolist() == expected.argmax(1).tolist()
    mine = run_bank(bank, test.inputs)[:, 0, :classes].double().softmax(-1).numpy()
    assert numpy.abs(mine - expected).max() < 1e-4


@pytest.mark.parametrize("count", [30, 400])  # fewer and more examples than random features
@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_the_ridge_is_that_of_scikit_learn(count: int, penalty: float) -> None:
    train, projection = draw_features(count), draw_projection(FEATURES, 40, torch.Generator().manual_seed(0))
    features = torch.relu(train.inputs @ projection).double()
    alpha = penalty * float(features.square().sum(0).mean())
    expected = Ridge(alpha=alpha, fit_intercept=False).fit(features.numpy(), numpy.eye(CLASSES)[train.labels.numpy()])
    weight, bias = fit_ridge(train, NOTHING, projection, [penalty])
    assert numpy.abs(weight.numpy() - expected.coef_.T).max() < 1e-5
    assert not bias.any()


def test_a_ridge_bank_is_its_projection_and_its_output_layer() -> None:
    train, test = draw_features(400), draw_features(100, 1)
    bank = fit("ridge", train)
    projection = bank.weights[0].detach()[0]
    weight, _ = fit_ridge(train, NOTHING, projection)
    expected = torch.relu(test.inputs @ projection) @ weight.float()
    assert torch.allclose(run_bank(bank, test.inputs)[:, 0], expected, atol=1e-4)
    assert torch.equal(fit("ridge", train).weights[1], bank.weights[1])
    assert not torch.equal(fit("ridge", train, seed=1).weights[0], bank.weights[0])


# --- choices on validation


def test_the_penalty_is_the_best_on_validation() -> None:
    train, validation = draw_features(60), draw_features(400, 1)
    projection = draw_projection(FEATURES, 40, torch.Generator().manual_seed(0))
    checked = torch.relu(validation.inputs @ projection).double()
    layers = [fit_ridge(train, NOTHING, projection, [penalty])[0] for penalty in PENALTIES]
    reached = [float(((checked @ weight).argmax(1) == validation.labels).double().mean()) for weight in layers]
    assert len(set(reached)) > 1
    chosen = fit_ridge(train, validation, projection)[0]
    assert torch.equal(chosen, layers[reached.index(max(reached))])
    assert torch.equal(fit_ridge(train, NOTHING, projection)[0], layers[len(layers) // 2])


def test_class_means_are_compared_by_angle_where_that_is_better() -> None:
    """Two classes in two directions, one mean ten times as far out: a short example of it is nearer to the other."""
    train = Split(torch.tensor([[10.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    short = Split(torch.tensor([[1.0, 0.1]]), torch.tensor([0]), torch.tensor([0]))
    long = Split(torch.tensor([[4.0, 1.0]]), torch.tensor([1]), torch.tensor([0]))
    assert not fit_means(train, short)[1].any()
    assert fit_means(train, long)[1].any()  # neither is better by angle
    assert fit_means(train, train)[1].any()  # both are right


@pytest.mark.parametrize("name", CONFIGS)
def test_the_size_of_the_logits_is_the_best_on_validation_and_changes_no_answer(name: str) -> None:
    train, validation, test = draw_features(400), draw_features(300, 1), draw_features(500, 2)
    bank = fit(name, train, validation)
    projection = bank.weights[0].detach()[0]
    features = torch.relu(test.inputs @ projection) if name == "ridge" else test.inputs
    weight, bias = {
        "means": lambda: fit_means(train, validation),
        "lda": lambda: fit_lda(train),
        "ridge": lambda: fit_ridge(train, validation, projection),
    }[name]()
    assert answers(bank, test.inputs).tolist() == (features.double() @ weight + bias).argmax(-1).tolist()
    logits = run_bank(bank, validation.inputs)[:, 0]
    losses = [float(torch.nn.functional.cross_entropy(factor * logits, validation.labels)) for factor in (0.9, 1, 1.1)]
    assert losses[1] == min(losses)


def test_the_temperature_undoes_a_factor_on_calibrated_logits() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 5, generator=draw).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=draw)[:, 0]
    for factor in (0.02, 1.0, 30.0):
        assert fit_temperature(factor * logits, labels) == pytest.approx(1 / factor, rel=0.05)


# --- classes without examples


@pytest.mark.parametrize("name", CONFIGS)
def test_a_class_without_examples_is_never_predicted(name: str) -> None:
    whole, test = draw_features(300), draw_features(1000, 1)
    train = whole.only((whole.labels != 0) & (whole.labels != 4))
    validation = draw_features(100, 2)  # which has examples of the missing classes
    bank = fit(name, train, validation)
    logits = run_bank(bank, test.inputs)[:, 0]
    assert bool(logits.isfinite().all())
    assert not set(logits.argmax(-1).tolist()) & {0, 4}
    known = torch.isin(test.labels, train.labels)
    right = (logits.argmax(-1) == test.labels)[known].double().mean()
    assert float(right) > 0.6  # ten classes, so chance is 0.1


@pytest.mark.parametrize("name", CONFIGS)
def test_one_example_per_class_is_enough(name: str) -> None:
    train = draw_features(CLASSES)
    assert answers(fit(name, train), train.inputs).tolist() == train.labels.tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_single_class_is_always_predicted(name: str) -> None:
    train = draw_features(100)
    assert set(answers(fit(name, train.only(train.labels == 3)), train.inputs).tolist()) == {3}


def test_classes_of_one_example_stand_beside_others(recwarn: pytest.WarningsRecorder) -> None:
    whole, test = draw_features(300), draw_features(500, 1)
    first = torch.arange(300) == 3
    train = whole.only((whole.labels != 3) | first)
    right = answers(fit("lda", train), test.inputs) == test.labels
    assert float(right.double().mean()) > 0.6
    assert not recwarn.list


def test_without_a_covariance_the_discriminant_is_the_class_mean() -> None:
    train = draw_features(CLASSES)
    pairs = zip(fit_lda(train), fit_means(train, NOTHING), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


# --- what is refused


@pytest.mark.parametrize("name", CONFIGS)
def test_a_regression_is_refused(name: str) -> None:
    base = Base(IdentityEncoder(), torch.ones(FEATURES, 1), torch.zeros(1), torch.zeros(FEATURES), torch.ones(FEATURES))
    with pytest.raises(RedxError, match=rf"'pooled/{name}' .* a regression; set its fit to gradient\.$"):
        fit_bank(BankId("pooled", name), CONFIGS[name], draw_features(50), NOTHING, base, 0)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["banks.residual/plain.fit=means", "banks.residual/plain.shape=linear"], "is for pooled heads"),
        (["banks.standalone/linear.fit=lda"], "is for pooled heads"),
        (["banks.pooled/mlp.fit=means"], "for a linear head"),
        (["banks.pooled/linear.fit=ridge"], "an mlp of depth 1 with relu"),
        (["banks.pooled/ridge.activation=gelu"], "an mlp of depth 1 with relu"),
        (["banks.pooled/ridge.depth=2"], "an mlp of depth 1 with relu"),
        (["banks.pooled/lda.fit=qda"], "pooled/lda.fit"),
    ],
)
def test_settings_that_do_not_fit_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(RedxError, match=message):
        configure("intents", assignments=assignments)


# --- in a run


@pytest.mark.slow
def test_a_run_saves_and_evaluates_them_like_all_pooled_heads(tmp_path: Path) -> None:
    clouds = draw_clouds(400)
    file = write_arrays(tmp_path / "f.npz", **clouds)
    banks = configure("features", "quick").model_dump()["banks"]
    banks |= {f"pooled/{name}": config.model_dump() for name, config in CONFIGS.items()}
    epochs = {"base": 3, "experts": 2, "router": 2}
    done = redx.run(
        "features", "quick", out=tmp_path / "run", file=str(file), banks=banks, study="none", run="red", epochs=epochs
    )
    for name in CONFIGS:
        assert done.summary["rules"][f"global/{name}"]["accuracy"]["mean"] > 0.8
    model = redx.load(done.folder)
    with model.using("global/lda"):
        right = numpy.array(model.predict(clouds["x"])) == clouds["y"]
    assert right.mean() > 0.8
