"""Settings of a model that nobody chose: they follow from the numbers of examples."""

from __future__ import annotations

import math

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    EncodingConfig,
    ModelConfig,
    OwnershipConfig,
    RouterConfig,
    StatisticsConfig,
    TrainingConfig,
    TrunkConfig,
)

BATCH = 64  # examples per step
MIN_STEPS = 120  # of each stage
MIN_EPOCHS = 10
LEARNING_RATE = 5e-3  # of AdamW: few steps, small networks
HIDDEN, RANK = 64, 16  # width of the base's layer, rank of an expert's residual
KIND = BankId("residual", "anchored")  # the experts that are trained
CONTROLLED = BankId("residual", "risk")  # the same experts under risk control


def default_training(examples: int, epochs: int | None = None) -> TrainingConfig:
    """Return how a small network is trained on so many examples.

    Parameters
    ----------
    examples
        Number of training examples.
    epochs
        Passes over them; None: enough for the number of examples.
    """
    steps = math.ceil(max(1, examples) / BATCH)
    epochs = epochs or max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps))
    return TrainingConfig(
        epochs=epochs, batch=BATCH, virtual_batch=BATCH, lr=LEARNING_RATE, weight_decay=1e-2, warmup=0.1
    )


def default_config(
    backbone: str = "features",
    shared: int = 0,
    own: int = 0,
    own_labels: bool = True,
    statistics: StatisticsConfig = StatisticsConfig(use=True),
) -> ModelConfig:
    """Return the settings of a model with anchored experts under risk control and the router `keys`.

    Parameters
    ----------
    backbone
        The name of the backbone.
    shared, own
        Numbers of shared examples and of the expert's own; they decide the number of epochs.
    own_labels
        Whether domains have labels of their own, so that an expert's domain is recognised by them.
    statistics
        Settings of the statistics that owners share, whose sum is the base.
    """
    residual = BankConfig(shape="lowrank", hidden=RANK, dropout=0.1, anchor="margin", training=default_training(own))
    scorer = BankConfig(shape="mlp", hidden=HIDDEN, depth=1, training=default_training(own))
    if own_labels:
        scorer = residual.model_copy(update={"anchor": "truth", "anchor_weight": 4.0})
    return ModelConfig(
        backbone=backbone,
        encoding=EncodingConfig(blocks=(-1,), pooling="mean", tokens=256),
        base=BaseConfig(
            share=1.0,
            trunk=TrunkConfig(shape="mlp", hidden=HIDDEN, depth=1),
            training=default_training(shared),
        ),
        statistics=statistics,
        banks={KIND: residual, CONTROLLED: residual.model_copy(update={"experts_of": KIND, "controlled": True})},
        main={"residual": CONTROLLED.name},
        ownership=OwnershipConfig(kind="classes" if own_labels else "binary", bank=scorer),
        router=RouterConfig(shape="keys", hidden=HIDDEN, dropout=0.1),
    )
