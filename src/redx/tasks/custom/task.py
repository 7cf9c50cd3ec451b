"""The tasks on a user's own data: texts in a table (`jsonl`), or features in an .npz file (`features`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    EncodingConfig,
    OwnershipConfig,
    RouterConfig,
    RunConfig,
    StatisticsConfig,
    TableConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data.dataset import Data
from redx.data.inputs import read_features, read_texts
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.options import FEATURES as FEATURE_OPTIONS
from redx.tasks.options import TEXTS as TEXT_OPTIONS

if TYPE_CHECKING:
    pass

TEXTS, ARRAYS = TableConfig(), TableConfig(text="x", label="y", domain="domain", split="split")


def load(config: RunConfig, seed: int) -> Data:
    """Return the three splits of the user's own texts or features."""
    from redx.tasks.custom import loading  # imports torch, which listing the tasks must not

    return loading.load_features(config, seed) if config.task == "features" else loading.load_texts(config, seed)


def preset_config(task: str, preset: str, table: TableConfig, epochs: int) -> RunConfig:
    """Return the settings of a preset: the compared banks and pooled heads, with conformal cut-offs."""
    training = TrainingConfig(epochs=epochs, batch=64, virtual_batch=64, lr=2e-3, weight_decay=0.1, warmup=0.1)
    lowrank = BankConfig(shape="lowrank", hidden=32, dropout=0.2, training=training)
    anchored = lowrank.model_copy(update={"anchor": "margin"})
    head = BankConfig(shape="mlp", hidden=64, depth=1, dropout=0.2, training=training)
    linear = BankConfig(shape="linear", dropout=0.2, training=training)
    features = task == "features"
    return RunConfig(
        task=task,
        preset=preset,
        backbone="features" if features else "minilm-l6",
        threads=1,
        table=table,
        encoding=EncodingConfig(blocks=(-1,), pooling="mean", tokens=None if features else 256),
        base=BaseConfig(
            share=0.2,
            least=3,
            trunk=TrunkConfig(shape="mlp" if features else "linear", hidden=128, depth=1),
            dropout=0.2,
            training=training.model_copy(update={"epochs": 2 * epochs}),
        ),
        statistics=StatisticsConfig(use=True),
        banks={
            **compared_banks(lowrank, anchored, head, statistics=True),
            BankId("pooled", "linear"): linear,
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=256, depth=1, dropout=0.2, training=training),
        },
        main=MAIN_BANKS,
        # there is no early stopping, so nearly all of the few validation examples calibrate
        ownership=OwnershipConfig(kind="binary", calibration=0.9, bank=head),
        router=RouterConfig(hidden=128, dropout=0.2, training=training),
    )


TASKS = {
    "jsonl": Task(
        "jsonl",
        "Your own texts: a table (JSONL, CSV, Parquet) with labels and, if you like, domains.",
        {
            # redx run jsonl --preset quick --data FILE: to see everything once.
            "quick": preset_config("jsonl", "quick", TEXTS, 5),
            # redx run jsonl --data FILE --domain COLUMN: after reading the texts once, a minute for 20,000 of them.
            "default": preset_config("jsonl", "default", TEXTS, 20),
        },
        load,
        read_texts,
        study="redx.tasks.custom.study",
        text=True,
        options=TEXT_OPTIONS,
        takes={"quick": "under a minute", "default": "about a minute for 20,000 texts, once they are encoded"},
        downloads="encoder, 90 MB",
    ),
    "features": Task(
        "features",
        "Your own features: an .npz file with x, y and, if you like, domain and split.",
        {
            # redx run features --preset quick --data FILE.npz: to see everything once.
            "quick": preset_config("features", "quick", ARRAYS, 5),
            # redx run features --data FILE.npz: seconds for thousands of examples.
            "default": preset_config("features", "default", ARRAYS, 20),
        },
        load,
        read_features,
        study="redx.tasks.custom.study",
        options=FEATURE_OPTIONS,
        takes={"quick": "under a minute", "default": "under a minute for some thousand rows"},
    ),
}
