"""What a fitted RedClassifier consists of: trained modules, the settings of every stage, and the composed model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redx.composition.rules import get_rule
from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    ModelConfig,
    OwnershipConfig,
    RouterConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data.clusters import MAX_DEVIATIONS
from redx.data.dataset import Split
from redx.model.model import Model, ModelInfo
from redx.model.persistence import fixed_banks
from redx.models.base import Base
from redx.models.encoder import FeatureEncoder
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.models.router import TrainedRouter, build_router
from redx.models.trunks import MLPTrunk

BATCH = 64  # examples per step
MIN_STEPS = 120  # of each stage, unless the number of epochs is given
MIN_EPOCHS = 10  # unless given
LEARNING_RATE = 5e-3  # of AdamW: few steps, small networks
Arrays = dict[str, np.ndarray]


@dataclass
class FittedState:
    """Everything but the experts: it is pickled as plain arrays, and `compose` turns it into a model.

    Attributes
    ----------
    config
        Settings of every stage.
    base, anchors, calibration
        The frozen base in single precision, and the shared and the calibration examples as features.
    classes, domains
        Names of classes and of the domains that it was fitted on.
    fingerprint, seed
        Fingerprint of the base, and the seed of all stages.
    mean, scale
        Standardisation of the user's features, (F,).
    router, pooled
        Tensors of the trained router and of the pooled heads, where there are any.
    """

    config: ModelConfig
    base: Base
    anchors: Split
    calibration: Split
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    fingerprint: dict[str, Any]
    seed: int
    mean: np.ndarray
    scale: np.ndarray
    router: dict[str, Tensor] | None = None
    pooled: dict[str, Tensor] | None = None

    def standardise(self, features: np.ndarray) -> Tensor:
        """Return standardised features in double precision, clipped to a few standard deviations."""
        return standardise(features, self.mean, self.scale)

    def compose(self, experts: Sequence[Expert], read: Callable[[Any], Tensor], rule: str) -> Model:
        """Return the composed model in double precision: an answer must not depend on the batch it is in."""
        config = self.config
        base = Base.from_tensors(self.base.tensors(), _build_encoder(len(self.mean), config.base.trunk.hidden)).double()
        library = ExpertLibrary(
            {expert.name: expert for expert in experts},
            base,
            config.of_form("residual", "standalone"),
            config.ownership,
            lambda: dict(self.fingerprint),
            self.classes,
        )
        library.apply(to_double_precision)
        router = None
        if self.router is not None:
            network = build_router(base.width, len(self.domains), config.router)
            network.load_state_dict(self.router)
            router = TrainedRouter(network.double(), self.domains)
        complete = set(library.names) == set(self.domains)
        fixed = fixed_banks(config, base, library, self.pooled or {}, average=complete)
        for bank in fixed.values():
            bank.double()
        routed = self.domains if router else ()
        return Model.assemble(
            info=ModelInfo(self.domains, self.classes, (-1,) * len(self.classes), routed=routed),
            config=config,
            read=read,
            base=base,
            experts=library,
            router=router,
            fixed=fixed,
            rule=rule,
            calibration_set=lambda: _to_double(self.calibration),
            anchor_data=lambda: _to_double(self.anchors),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the state as arrays and plain values, to be pickled."""
        return vars(self) | {
            "config": self.config.model_dump(mode="json"),
            "base": to_arrays(self.base.tensors()),
            "anchors": to_arrays(vars(self.anchors)),
            "calibration": to_arrays(vars(self.calibration)),
            "router": self.router and to_arrays(self.router),
            "pooled": self.pooled and to_arrays(self.pooled),
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> FittedState:
        """Return the state that `to_plain` described."""
        config = ModelConfig.model_validate(plain["config"])
        encoder = _build_encoder(len(plain["mean"]), config.base.trunk.hidden)
        changed = {
            "config": config,
            "base": Base.from_tensors(to_tensors(plain["base"]), encoder),
            "anchors": Split(**to_tensors(plain["anchors"])),
            "calibration": Split(**to_tensors(plain["calibration"])),
            "router": plain["router"] and to_tensors(plain["router"]),
            "pooled": plain["pooled"] and to_tensors(plain["pooled"]),
        }
        return FittedState(**plain | changed)


def to_double_precision(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _to_double(split: Split) -> Split:
    return Split(split.inputs.double(), split.labels, split.domains)


def standardise(features: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> Tensor:
    """Return (features - mean) / scale in double precision, clipped to a few standard deviations."""
    return torch.from_numpy(((features - mean) / scale).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS))


def build_config(parameters: dict[str, Any], shared: int, rows: int, domains: int, own_classes: bool) -> ModelConfig:
    """Return the settings of every stage.

    Parameters
    ----------
    parameters
        Parameters of the estimator, as `get_params` returns them.
    shared, rows, domains
        Numbers of shared examples, training examples and domains; they decide the number of epochs.
    own_classes
        Whether every class belongs to one domain alone, so that ownership can be scored by classes.
    """

    def training(examples: int) -> TrainingConfig:
        steps = math.ceil(max(1, examples) / BATCH)
        epochs = parameters["epochs"] or max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps))
        return TrainingConfig(
            epochs=epochs, batch=BATCH, virtual_batch=BATCH, lr=LEARNING_RATE, weight_decay=1e-2, warmup=0.1
        )

    hidden, experts, router = parameters["hidden"], parameters["experts"], parameters["router"]
    per_expert = training(rows // domains)
    residual = BankConfig(shape="lowrank", hidden=parameters["rank"], dropout=0.1, training=per_expert)
    head = BankConfig(shape="mlp", hidden=hidden, depth=1, training=per_expert)
    kind = "plain" if experts == "plain" else "anchored"
    if kind == "anchored":
        residual = residual.model_copy(update={"anchor": parameters["anchor"]})
        head = head.model_copy(update={"anchor": "truth"})
    banks = {BankId("residual", kind): residual}
    if experts == "risk":
        controlled = residual.model_copy(update={"experts_of": BankId("residual", kind), "controlled": True})
        banks[BankId("residual", "risk")] = controlled
    form = get_rule(parameters["rule"]).form
    if form in ("standalone", "averaged"):
        banks[BankId("standalone", kind)] = head
    if form == "pooled":
        banks[BankId("pooled", "mlp")] = head.model_copy(update={"anchor": "none", "training": training(rows)})
    scorer = residual.model_copy(update={"anchor": "truth", "anchor_weight": 4.0}) if own_classes else head
    return ModelConfig(
        risk=parameters["risk"],
        confidence=parameters["confidence"],
        banks=banks,
        main={"residual": "risk" if experts == "risk" else kind, "standalone": kind, "pooled": "mlp", "averaged": kind},
        base=BaseConfig(
            share=parameters["share"],
            trunk=TrunkConfig(shape="mlp", hidden=hidden, depth=1),
            training=training(shared),
        ),
        ownership=OwnershipConfig(kind="classes" if own_classes else "binary", bank=scorer),
        router=RouterConfig.model_validate(
            {"shape": router, "hidden": hidden, "dropout": 0.1, "training": training(rows)}
        ),
    )


def to_arrays(tensors: dict[str, Tensor]) -> Arrays:
    """Return tensors as NumPy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return NumPy arrays as tensors that own their memory."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _build_encoder(features: int, hidden: int) -> FeatureEncoder:
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and overwritten; nobody else's draws change
        return FeatureEncoder(MLPTrunk(features, hidden, 1, append_features=True))
