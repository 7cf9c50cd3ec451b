"""The task `adapters`: its settings; `redx.adapters.stages` does the work, and is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from redx.config import (
    MERGES,
    AdapterConfig,
    BankConfig,
    BankId,
    LoraTraining,
    RouterConfig,
    RunConfig,
    TableConfig,
    TrainingConfig,
)
from redx.data.dataset import Data
from redx.errors import RedxError
from redx.tasks import Task
from redx.tasks.options import ADAPTERS

if TYPE_CHECKING:
    from torch import Tensor

STAGES = "redx.adapters.stages"
INSTEAD = (
    "`redx generate` continues texts with it, `redx adapters` lists and changes its adapters, and in Python "
    "`redx.load` returns the language model"
)
PLAIN = BankId("residual", "plain")


def load(config: RunConfig, seed: int) -> Data:
    """Return the documents of every domain, divided by the seed."""
    return importlib.import_module(STAGES).load(config, seed)


def read(inputs: Any) -> Tensor:
    """Refuse a user's inputs, which a language model continues and does not classify."""
    raise RedxError(f"A run of adapters predicts no classes; {INSTEAD}.")


def preset_config(preset: str, adapters: AdapterConfig, risk: float | None = None) -> RunConfig:
    """Return the settings of a preset."""
    training = TrainingConfig(epochs=100, batch=256, virtual_batch=256, lr=2e-2, weight_decay=0.1, patience=10)
    plain = BankConfig(shape="lowrank", hidden=adapters.training.rank)
    return RunConfig(
        task="adapters",
        preset=preset,
        backbone="smollm2-135m",
        threads=2,
        table=TableConfig(domain="domain"),
        adapters=adapters,
        banks={
            PLAIN: plain,
            BankId("residual", "keys"): plain.model_copy(update={"experts_of": PLAIN}),
            BankId("residual", "risk"): plain.model_copy(update={"experts_of": PLAIN, "controlled": True}),
        },
        main={"residual": "risk", "averaged": adapters.merges[0]},
        router=RouterConfig(shape="linear", training=training),
        risk=risk,
        study="none",
    )


TASKS = {
    "adapters": Task(
        "adapters",
        "LoRA adapters of one language model as experts, trained or given, on documents with domains.",
        {
            # redx run adapters --train --preset tiny --backbone FOLDER: seconds with a tiny model, for first steps.
            "tiny": preset_config(
                "tiny",
                AdapterConfig(
                    training=LoraTraining(rank=2, steps=4, batch=2, tokens=16, lr=1e-2),
                    tokens=24,
                    documents=6,
                    calibration=1,
                    router_documents=6,
                    merges=("linear", "cat"),
                    scales=(0.5,),
                ),
                risk=0.2,
            ),
            # redx run adapters --train --preset quick: under a minute of one core for an adapter, and as few documents
            # as a risk of 0.01 allows.
            "quick": preset_config(
                "quick",
                AdapterConfig(
                    training=LoraTraining(steps=20, tokens=64, lr=3e-3),
                    tokens=48,
                    documents=20,
                    calibration=1,
                    router_documents=8,
                    merges=("linear", "cat", "ties", "dare_linear"),
                    scales=(0.2, 0.5),
                ),
            ),
            # redx run adapters --train: more documents to calibrate on than to test on, since with n of them
            # 1 / (n + 1) of the risk is lost.
            "default": preset_config("default", AdapterConfig(merges=MERGES)),
        },
        load,
        read,
        text=True,
        options=ADAPTERS,
        takes={"tiny": "under a minute", "quick": "about 10 minutes", "default": "about 45 minutes"},
        downloads="model, texts, 90 MB",
        stages=STAGES,
        instead=INSTEAD,
    ),
}
