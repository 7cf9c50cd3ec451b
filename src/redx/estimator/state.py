"""What a fitted RedClassifier consists of: trained modules, the settings of every stage, and the composed model."""

from __future__ import annotations

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
    StatisticsConfig,
    TrunkConfig,
)
from redx.data.clusters import MAX_DEVIATIONS
from redx.data.dataset import Split
from redx.model.defaults import default_training
from redx.model.model import Model, ModelInfo
from redx.model.persistence import fixed_banks
from redx.models.base import Base
from redx.models.encoder import FeatureEncoder
from redx.models.expert import Expert
from redx.models.feature_map import FeatureMap
from redx.models.library import ExpertLibrary
from redx.models.ridge_head import RidgeHead, StatisticsPool
from redx.models.router import TrainedRouter, build_router
from redx.models.statistics import Statistics
from redx.models.trunks import MLPTrunk

MOST_FEATURES = 1000  # random features of the base, where twice the number of examples is more
EXPERT_FEATURES = 256  # the same of an expert and of its ownership score
WIDTH = 64  # hidden layer of a trained router and of a pooled head
LEFT_OUT = 400  # examples that are left out in turn to choose the base's λ
WEIGHT = 0.5  # what a weight of one moves the answer from the base towards the expert's own answer
OWNERSHIP_ANCHORS = 4.0  # weight of other domains in an ownership score by classes
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
    head
        The base of these experts' statistics, where it was solved before.
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
    head: RidgeHead | None = None

    def standardise(self, features: np.ndarray) -> Tensor:
        """Return standardised features in double precision, clipped to a few standard deviations."""
        return standardise(features, self.mean, self.scale)

    def compose(self, experts: Sequence[Expert], read: Callable[[Any], Tensor], rule: str) -> Model:
        """Return the composed model in double precision: an answer must not depend on the batch it is in."""
        config = self.config
        base = Base.from_tensors(self.base.tensors(), build_encoder(len(self.mean))).double()
        library = ExpertLibrary(
            {expert.name: expert for expert in experts},
            base,
            config.of_form("residual", "standalone"),
            config.ownership,
            lambda: dict(self.fingerprint),
            self.classes,
            self._pool(),
            config.statistics.weight,
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

    def _pool(self) -> StatisticsPool:
        map = FeatureMap.create(self.config.statistics, self.base)
        return StatisticsPool(
            map, lambda: self.anchors, None, lambda: self.fingerprint["base weights"], self.head, LEFT_OUT
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
            "head": self.head and (self.head.weight.numpy(), *_about(self.head)),
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> FittedState:
        """Return the state that `to_plain` described."""
        config = ModelConfig.model_validate(plain["config"])
        base = Base.from_tensors(to_tensors(plain["base"]), build_encoder(len(plain["mean"])))
        map = FeatureMap.create(config.statistics, base)
        changed = {
            "config": config,
            "base": base,
            "anchors": Split(**to_tensors(plain["anchors"])),
            "calibration": Split(**to_tensors(plain["calibration"])),
            "router": plain["router"] and to_tensors(plain["router"]),
            "pooled": plain["pooled"] and to_tensors(plain["pooled"]),
            "head": plain["head"] and RidgeHead(map, torch.from_numpy(plain["head"][0]), *plain["head"][1:]),
        }
        return FittedState(**plain | changed)


def to_double_precision(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _to_double(split: Split) -> Split:
    return Split(split.inputs.double(), split.labels, split.domains)


def standardise(features: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> Tensor:
    """Return (features - mean) / scale in double precision, clipped to a few standard deviations."""
    return torch.from_numpy(((features - mean) / scale).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS))


def build_config(parameters: dict[str, Any], rows: int, domains: int, own_classes: bool) -> ModelConfig:
    """Return the settings of every stage.

    Parameters
    ----------
    parameters
        Parameters of the estimator, as `get_params` returns them.
    rows, domains
        Numbers of training examples and of domains; they decide how many random features are used.
    own_classes
        Whether every class belongs to one domain alone, so that ownership can be scored by classes.
    """
    experts, router = parameters["experts"], parameters["router"]
    training = default_training(rows, parameters["epochs"])
    kind = "plain" if experts == "plain" else "anchored"
    head = BankConfig(
        shape="mlp",
        hidden=min(EXPERT_FEATURES, rows),
        depth=1,
        activation="relu",
        fit="ridge",
        anchor="none" if experts == "plain" else "truth",
    )
    banks = {BankId("residual", kind): head}
    if experts == "risk":
        controlled = head.model_copy(update={"experts_of": BankId("residual", kind), "controlled": True})
        banks[BankId("residual", "risk")] = controlled
    form = get_rule(parameters["rule"]).form
    if form in ("standalone", "averaged"):
        banks[BankId("standalone", kind)] = head
    if form == "pooled":
        banks[BankId("pooled", "mlp")] = BankConfig(shape="mlp", hidden=WIDTH, depth=1, training=training)
    return ModelConfig(
        risk=parameters["risk"],
        confidence=parameters["confidence"],
        by=parameters["by"],
        budget=parameters["budget"],
        banks=banks,
        main={"residual": "risk" if experts == "risk" else kind, "standalone": kind, "pooled": "mlp", "averaged": kind},
        base=BaseConfig(share=parameters["share"], trunk=TrunkConfig(shape="linear")),
        statistics=StatisticsConfig(
            use=True,
            size=parameters["hidden"] or min(MOST_FEATURES, 2 * rows),
            unit=False,
            guided=0.0,
            shift=0.5,
            weight=WEIGHT,
        ),
        ownership=OwnershipConfig(
            kind="classes" if own_classes else "binary",
            bank=head.model_copy(update={"anchor": "truth", "anchor_weight": OWNERSHIP_ANCHORS}),
        ),
        router=RouterConfig.model_validate({"shape": router, "hidden": WIDTH, "dropout": 0.1, "training": training}),
    )


def expert_to_plain(expert: Expert) -> tuple[dict[str, Any], Arrays, tuple[dict[str, Any], Arrays] | None]:
    """Return an expert as plain values and arrays: its description, its tensors and its statistics."""
    sums = expert.statistics()
    return expert.info, to_arrays(expert.tensors()), sums and (sums.describe(), to_arrays(sums.tensors()))


def expert_from_plain(
    info: dict[str, Any], arrays: Arrays, sums: tuple[dict[str, Any], Arrays] | None = None
) -> Expert:
    """Return the expert that `expert_to_plain` described."""
    return Expert(info, to_tensors(arrays), sums and Statistics.from_tensors(to_tensors(sums[1]), sums[0]))


def to_arrays(tensors: dict[str, Tensor]) -> Arrays:
    """Return tensors as NumPy arrays."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return NumPy arrays as tensors that own their memory."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _about(head: RidgeHead) -> tuple[Any, ...]:
    """Return what a head is made of beside its map and its weight."""
    return head.classes, head.missing, head.owners, head.chosen


def build_encoder(features: int) -> FeatureEncoder:
    """Return an encoder that gives standardised features as they are."""
    return FeatureEncoder(MLPTrunk(features, features, 0, append_features=False))
