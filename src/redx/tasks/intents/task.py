"""CLINC150: short queries of 150 intents in ten domains, with one expert per domain."""

from __future__ import annotations

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    EncodingConfig,
    OwnershipConfig,
    RouterConfig,
    RunConfig,
    StatisticsConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data.dataset import Data
from redx.data.inputs import read_texts
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.options import INTENTS


def load(config: RunConfig, seed: int) -> Data:
    """Return the official splits of the queries in scope."""
    from redx.tasks.intents.loading import load_intents  # imports torch, which listing the tasks must not

    return load_intents(config, seed)


def preset_config(preset: str, epochs: int, compare: bool) -> RunConfig:
    """Return the settings of a preset: the compared banks and pooled heads, with conformal cut-offs.

    With `compare` there are also heads in closed form and the average of the parameters of separate heads.
    """
    training = TrainingConfig(epochs=epochs, batch=64, virtual_batch=64, lr=2e-3, weight_decay=0.1, warmup=0.1)
    head = BankConfig(shape="mlp", hidden=128, depth=1, dropout=0.2, training=training)
    anchored = head.model_copy(update={"anchor": "truth"})
    linear = BankConfig(shape="linear", dropout=0.2, training=training)
    others = {
        BankId("pooled", "linear"): linear,
        BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=256, depth=1, dropout=0.2, training=training),
    }
    if compare:
        others |= {
            BankId("standalone", "linear"): linear,  # heads whose parameters can be averaged
            BankId("pooled", "means"): BankConfig(shape="linear", fit="means"),
            BankId("pooled", "lda"): BankConfig(shape="linear", fit="lda"),
            BankId("pooled", "ridge"): BankConfig(shape="mlp", hidden=5000, depth=1, activation="relu", fit="ridge"),
        }
    return RunConfig(
        task="intents",
        preset=preset,
        backbone="minilm-l6",
        threads=1,
        encoding=EncodingConfig(blocks=(-4, -2, -1), pooling="mean", tokens=256),
        base=BaseConfig(
            share=0.2,
            least=3,
            trunk=TrunkConfig(shape="linear"),
            dropout=0.5,
            start="means",
            training=training.model_copy(update={"epochs": 2 * epochs}),
        ),
        statistics=StatisticsConfig(use=True),
        banks={**compared_banks(head, anchored, head, statistics=True), **others},
        main=MAIN_BANKS | ({"averaged": "linear"} if compare else {}),
        average=compare,
        # every intent belongs to one domain; there is no early stopping, so nearly all of validation calibrates
        ownership=OwnershipConfig(calibration=0.9, bank=anchored.model_copy(update={"hidden": 64})),
        router=RouterConfig(hidden=128, dropout=0.5, add_ownership=True, training=training),
    )


TASKS = {
    "intents": Task(
        "intents",
        "CLINC150: queries of 150 intents in ten domains, with one expert per domain on a sentence encoder.",
        {
            # redx run intents --preset quick: a minute, to see everything once.
            "quick": preset_config("quick", 5, compare=False),
            # redx run intents: three to five minutes a seed on one core, after the queries were encoded once.
            "default": preset_config("default", 20, compare=True),
        },
        load,
        read_texts,
        study="redx.tasks.intents.study",
        text=True,
        options=INTENTS,
        takes={"quick": "about a minute", "default": "about 5 minutes"},
        downloads="encoder, 90 MB",
    )
}
