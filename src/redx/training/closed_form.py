"""Pooled heads that are fitted in closed form, without gradients: strong and cheap references for the experts.

    means   nearest class mean: x·μ_c - |μ_c|²/2, or x·μ_c/|μ_c| where that is better on validation
    lda     linear discriminant analysis, the covariance shrunk by the formula of Ledoit and Wolf
    ridge   ridge regression to one-hot labels on relu(x P) with a random, fixed P, as in RanPAC

Each is the same function of features as a trained head of shape `linear` or, for `ridge`, `mlp`, so that it is saved,
loaded and evaluated like one. Its logits are multiplied by one factor, chosen on validation, which changes no answer: a
ridge gives numbers around 0 and 1, whose softmax would be nearly uniform. A class without training examples is never
predicted for inputs like those of training.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy, one_hot

from redx.config import BankConfig, BankId
from redx.data.dataset import Split
from redx.errors import RedxError
from redx.io.progress import progress
from redx.models.banks import MLPBank, build_bank, run_bank
from redx.models.base import Base
from redx.seeding import generator

ROWS = 4096  # examples whose random features are in memory at once
PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # λ of the ridge, in units of the mean square random feature

Layer = tuple[Tensor, Tensor]  # weight (E, C) and bias (C,)


def fit_bank(bank_id: BankId, config: BankConfig, train: Split, validation: Split, base: Base, seed: int) -> MLPBank:
    """Fit a pooled head in closed form.

    Parameters
    ----------
    bank_id
        Name of the bank, for messages and for the random projection.
    config
        Its settings; `fit` names the method.
    train
        Training examples of all domains; inputs are features, (N, E).
    validation
        Validation examples for choices: the form of `means`, λ of `ridge`, and the size of the logits.
    base
        The frozen base, which gives the widths.
    seed
        Decides the random projection.

    Returns
    -------
    MLPBank
        A bank of one head.

    Raises
    ------
    RedxError
        If the task is a regression, which has no classes.
    """
    require_classes(bank_id, base)
    bank = build_bank(config, 1, base)
    assert isinstance(bank, MLPBank)  # the settings refuse other shapes
    present = train.labels.unique()  # (C',)
    known, checked = (_number_classes(split, present) for split in (train, validation))
    with progress(f"seed {seed}: {bank_id}"):
        if config.fit == "ridge":
            projection = draw_projection(base.width, bank.weights[0].shape[2], generator(seed, "projection", bank_id))
            _fill(bank, 0, projection)
            weight, bias = fit_ridge(known, checked, projection)
        else:
            weight, bias = fit_means(known, checked) if config.fit == "means" else fit_lda(known)
    _fill(bank, -1, weight, bias, present)
    if len(checked):
        factor = fit_temperature(run_bank(bank, checked.inputs)[:, 0, present], checked.labels)
        _fill(bank, -1, factor * weight, factor * bias, present)
    return _exclude_missing(bank, train.inputs, present)


def require_classes(bank_id: BankId, base: Base) -> None:
    """Refuse to fit a bank of a regression in closed form."""
    if base.outputs == 1:
        raise RedxError(
            f"Bank '{bank_id}' is fitted in closed form, which needs classes, and this task is a regression; "
            "set its fit to gradient."
        )


def fit_means(train: Split, validation: Split) -> Layer:
    """Return the head of the nearest class mean, by distance, or by angle where that is better on validation.

    Parameters
    ----------
    train
        Training examples with features (N, E) and at least one example of every class.
    validation
        Examples for the choice between distance and angle.

    Returns
    -------
    tuple of Tensor
        Weight (E, C) and bias (C,).
    """
    targets = one_hot(train.labels).double()  # (N, C)
    means = train.inputs.double().T @ targets / targets.sum(0)  # (E, C)
    squares = means.square().sum(0)
    by_distance = means, -squares / 2
    by_angle = means / squares.sqrt().clamp_min(1e-12), torch.zeros_like(squares)
    return max((by_distance, by_angle), key=lambda layer: _accuracy(layer, validation))  # distance where both are equal


def fit_lda(train: Split) -> Layer:
    """Return the head of linear discriminant analysis with a shrunk covariance, as scikit-learn fits it.

    Where there is one class, or no class has two examples, no covariance can be estimated; it is the identity then, and
    the head that of the nearest class mean.

    Parameters
    ----------
    train
        Training examples with features (N, E) and at least one example of every class.

    Returns
    -------
    tuple of Tensor
        Weight (E, C) and bias (C,).
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    classes = int(train.labels.max()) + 1
    if classes < 2 or len(train) <= classes:
        return fit_means(train, train.only(torch.arange(0)))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    with warnings.catch_warnings():  # a class of one example adds nothing to the covariance
        warnings.filterwarnings("ignore", message="Only one sample available")
        model.fit(train.inputs.double().numpy(), train.labels.numpy())
    weight, bias = torch.from_numpy(model.coef_.T).double(), torch.from_numpy(model.intercept_).double()
    if classes == 2:  # scikit-learn gives the lead of the second class alone
        weight, bias = (torch.cat([torch.zeros_like(lead), lead], -1) for lead in (weight, bias))
    return weight, bias


def draw_projection(inputs: int, hidden: int, draw: Generator) -> Tensor:
    """Return a random projection (E, M) with normal entries, which keeps the size of features."""
    return torch.randn(inputs, hidden, generator=draw) * inputs**-0.5


def fit_ridge(train: Split, validation: Split, projection: Tensor, penalties: Sequence[float] = PENALTIES) -> Layer:
    """Return the output layer of a ridge regression to one-hot labels on random features.

    Parameters
    ----------
    train
        Training examples with features (N, E) and at least one example of every class.
    validation
        Examples on which the penalty λ with the best accuracy is chosen, of several the first; without examples it is
        the middle one.
    projection
        The random projection, (E, M); the random features are its outputs, those below zero set to zero.
    penalties
        Values of λ in units of the mean square of a random feature, summed over the examples.

    Returns
    -------
    tuple of Tensor
        Weight (M, C) and bias (C,), which is zero.
    """
    hidden, targets = projection.shape[1], one_hot(train.labels).double()  # M, (N, C)
    features = torch.empty(0)
    if len(train) < hidden:  # the same solution, from the smaller matrix of products of examples
        features = _random_features(train.inputs, projection).double()
        gram, right = features @ features.T, targets  # (N, N), (N, C)
    else:
        gram, right = torch.zeros(hidden, hidden).double(), torch.zeros(hidden, targets.shape[1]).double()
        for rows, wanted in zip(train.inputs.split(ROWS), targets.split(ROWS), strict=True):
            block = _random_features(rows, projection)
            gram += block.T @ block  # (M, M)
            right += block.double().T @ wanted  # (M, C)
    unit = float(gram.diagonal().sum()) / hidden
    checked = Split(_random_features(validation.inputs, projection), validation.labels, validation.domains)

    def solve(penalty: float) -> Layer:
        shifted = gram.clone()
        shifted.diagonal().add_(max(penalty * unit, 1e-12))
        solution = torch.cholesky_solve(right, torch.linalg.cholesky(shifted))
        return (features.T @ solution if len(features) else solution), torch.zeros(targets.shape[1]).double()

    if not len(checked):
        return solve(penalties[len(penalties) // 2])
    return max((solve(penalty) for penalty in penalties), key=lambda layer: _accuracy(layer, checked))  # the first best


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the factor on logits (N, C) from 0.001 to 1000 with the smallest cross-entropy to labels (N,)."""
    factors: list[float] = torch.logspace(-3, 3, 301).tolist()
    return min(factors, key=lambda factor: float(cross_entropy(factor * logits, labels)))


def _random_features(x: Tensor, projection: Tensor) -> Tensor:
    return torch.relu(x @ projection)


def _number_classes(split: Split, present: Tensor) -> Split:
    """Return the examples of these classes, (C',), with the classes numbered from 0 on."""
    kept = split.only(torch.nonzero(torch.isin(split.labels, present))[:, 0])
    return Split(kept.inputs, torch.searchsorted(present, kept.labels), kept.domains)


def _accuracy(layer: Layer, split: Split) -> float:
    """Return the share of correct answers; 0 without examples."""
    weight, bias = layer
    correct = (split.inputs.double() @ weight + bias).argmax(-1) == split.labels
    return float(correct.double().sum()) / max(1, len(split))


def _fill(
    bank: MLPBank, layer: int, weight: Tensor, bias: Tensor | None = None, columns: Tensor | slice = slice(None)
) -> None:
    """Copy weight and bias into these columns of a layer of a bank of one head."""
    with torch.no_grad():
        bank.weights[layer][0, :, columns] = weight.float()
        if bias is not None:
            bank.biases[layer][0, 0, columns] = bias.float()


def _exclude_missing(bank: MLPBank, x: Tensor, present: Tensor) -> MLPBank:
    """Give all other classes a constant logit far below the logits of the training examples, (N, E)."""
    missing = torch.ones(bank.biases[-1].shape[-1], dtype=torch.bool)
    missing[present] = False
    if bool(missing.any()):
        logits = run_bank(bank, x)[:, 0, present] / bank.scale  # (N, C')
        with torch.no_grad():
            bank.biases[-1][0, 0, missing] = logits.min() - 10 * (logits.max() - logits.min()) - 1
    return bank
