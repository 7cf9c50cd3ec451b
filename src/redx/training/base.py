"""Train the base: an encoder and the shared classifier, on the shared subset."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from redx.composition.abstention import class_means
from redx.config import BaseConfig, ModelConfig
from redx.data.augment import distort
from redx.data.dataset import Data, Split
from redx.models.backbones.base import Encoder, IdentityEncoder
from redx.models.base import Base
from redx.models.encoder import build_encoder
from redx.models.feature_map import FeatureMap
from redx.models.ridge_head import Held, fit_head
from redx.models.statistics import collect
from redx.models.trunks import TokenSum
from redx.models.values import class_values, classifier_of_values
from redx.seeding import generator
from redx.training.datasets import BATCH, shared_rows, split_validation
from redx.training.loop import train

START = 10.0  # logit of an example of usual size that points along the mean of a class, before training


def train_base(config: ModelConfig, data: Data, seed: int) -> Base:
    """Return the base of a run: the one that the task gives, or one trained on the shared subset.

    Parameters
    ----------
    config
        Settings of the run.
    data
        The three splits; part of validation serves for early stopping.
    seed
        Decides the shared subset, the initial weights and the batches.
    """
    if data.given_base is not None:
        weight, bias = data.given_base
        return Base(IdentityEncoder(), weight, bias, torch.zeros(len(weight)), torch.ones(len(weight)))
    shared = data.train.only(shared_rows(data, config.base.share, seed, config.base.least))
    validation = data.validation.only(split_validation(data, config.ownership.calibration, seed)[0])
    seed_everything(seed)
    encoder = build_encoder(config)
    shared, validation = (
        Split(encoder.read(split.inputs), split.labels, split.domains) for split in (shared, validation)
    )
    encoder.fit(shared.inputs)
    return fit_base(encoder, config.base, shared, validation, data.outputs, seed, config.device)


def solve_feature_base(encoder: Encoder, shared: Split, classes: Sequence[str]) -> Base:
    """Return a base for standardised features, (N, F), solved in closed form; for the estimator.

    Parameters
    ----------
    encoder
        An encoder without trained parts, which returns the features as they are.
    shared
        The shared examples.
    classes
        The names of the classes, of each of which there are examples.
    """
    map = FeatureMap(shared.inputs.shape[1], 0)
    head = fit_head(collect(map, shared.inputs, shared.labels, classes), Held(shared=shared))
    weight, bias = head.weight[:-1].contiguous(), head.weight[-1].clone()
    return Base(encoder, weight, bias, torch.zeros(map.width), torch.ones(map.width))


def fit_encoder(encoder: Encoder, config: BaseConfig, shared: Split, outputs: int, seed: int, device: str) -> Base:
    """Return the base of an untrained encoder, fitted to the shared subset as `encoder.read` returns its inputs."""
    encoder.fit(shared.inputs)
    return fit_base(encoder, config, shared, None, outputs, seed, device)


def seed_everything(seed: int) -> None:
    """Seed torch's global generator, from which modules draw their initial weights."""
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator(seed, "base"))))


def fit_base(
    encoder: Encoder,
    config: BaseConfig,
    shared: Split,
    validation: Split | None,
    outputs: int,
    seed: int,
    device: str = "cpu",
) -> Base:
    """Train encoder and classifier together, and return them as a frozen base on the CPU.

    Parameters
    ----------
    encoder
        The untrained encoder.
    config
        Settings of the base.
    shared, validation
        The shared subset and validation examples, as `encoder.read` returns their inputs; no validation, no early stop.
    outputs
        Number of classes C.
    seed
        Decides batches and augmentation.
    device
        Where to train.
    """
    width: int = encoder.width  # D; further features of the encoder are for experts and router
    classifier = nn.Linear(width, outputs).to(device)
    encoder.to(device)
    drop = nn.Dropout(config.dropout)
    network = nn.ModuleList([encoder, classifier, drop])
    trunk = encoder.value_trunk if config.teach == "value" else None
    values = set_class_values(trunk, classifier) if trunk else torch.empty(0)
    if config.start == "means" and trunk is None:
        start_from_means(encoder, classifier, shared)
    draw = generator(seed, "augmentation")

    def logits(inputs: Tensor) -> Tensor:
        return classifier(drop(encoder(inputs.to(device))[:, :width]))

    def loss(rows: Tensor) -> Tensor:
        inputs = shared.inputs[rows[0]]
        inputs = (distort(inputs, draw) if config.augment else inputs).to(device)
        labels = shared.labels[rows[0]].to(device)
        if trunk is not None:
            return mse_loss(trunk.value(trunk.sum(inputs))[:, 0], values[labels])[None]
        return cross_entropy(logits(inputs), labels, label_smoothing=config.smoothing)[None]

    def score(_: int) -> float:
        assert validation is not None
        network.eval()
        batches = zip(validation.inputs.split(BATCH), validation.labels.split(BATCH), strict=True)
        with torch.no_grad():
            right = [logits(inputs).argmax(-1).cpu() == labels for inputs, labels in batches]
        network.train()
        return float(torch.cat(right).double().mean())

    batches = [generator(seed, "batches", "base")]
    title = f"seed {seed}: base"
    train(trunk or network, loss, [len(shared)], batches, config.training, title, score if validation else None)
    network.cpu().eval()
    with torch.no_grad():
        features = torch.cat([encoder(inputs) for inputs in shared.inputs.split(BATCH)])  # (N, E)
    return Base.from_trained(encoder, classifier, features)


def set_class_values(trunk: TokenSum, classifier: nn.Linear) -> Tensor:
    """Fix the classifier so that class c answers best at its own value, in order; return the values, (C,)."""
    count, device = classifier.out_features, classifier.weight.device
    classifier.weight.data = classifier_of_values(count, trunk.waves).T.contiguous().to(device)
    classifier.bias.data.zero_()
    return class_values(count, device)


def start_from_means(encoder: Encoder, classifier: nn.Linear, shared: Split) -> None:
    """Set the classifier to the nearest class mean by angle: what training starts from is right on most examples.

    Parameters
    ----------
    encoder
        The untrained encoder, fitted to the shared subset.
    classifier
        The classifier W_c; classes without examples keep their random weights.
    shared
        The shared subset, as `encoder.read` returns its inputs.
    """
    weight = classifier.weight
    with torch.no_grad():
        batches = shared.inputs.split(BATCH)
        features = torch.cat([encoder(inputs.to(weight.device))[:, : weight.shape[1]] for inputs in batches])
        labels = shared.labels.to(weight.device)
        weight[labels.unique()] = class_means(features, labels) * (START / weight.shape[1] ** 0.5)
        classifier.bias.zero_()
