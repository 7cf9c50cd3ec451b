"""Settings of a run of adapters, and its presets."""

from __future__ import annotations

from pydantic import Field

from redx.errors import RedxError
from redx.schema import DEFAULT_RISK, ScoreName, StrictConfig

ABOUT = "LoRA adapters of one language model as experts, trained or given (its own options: `redx run adapters --help`)"
MERGES = ("linear", "cat", "ties", "dare_linear", "dare_ties")  # of peft


class LoraTraining(StrictConfig):
    """How an adapter is trained."""

    rank: int = Field(default=8, ge=1, le=1024, description="rank of the adapters")
    steps: int = Field(default=60, ge=1, le=100_000, description="training steps of an adapter")
    batch: int = Field(default=4, ge=1, le=1024, description="blocks of text of a step")
    tokens: int = Field(default=128, ge=8, le=8192, description="tokens of a block of text")
    lr: float = Field(default=2e-3, gt=0, le=1, description="peak learning rate")
    first_block: int = Field(default=0, ge=0, description="first block of the model that is adapted")


class AdaptersConfig(StrictConfig):
    """Everything that decides the figures of a run of adapters."""

    task: str = Field(default="adapters", description="always adapters")
    backbone: str = Field(default="smollm2-135m", description="language model: an embedded one, a folder or a hub name")
    preset: str = Field(default="default", description="where the settings come from")
    seed: int = Field(
        default=0, ge=0, le=2**31, description="decides splits, initial weights and the order of training"
    )
    train: bool = Field(default=True, description="train one adapter per domain first")
    data: str | None = Field(default=None, description="table with the columns text and domain; default: five domains")
    domains: tuple[str, ...] = Field(default=(), description="domains to use; default: all")
    data_hash: str = Field(default="", description="hash of the documents")
    adapters: dict[str, str] = Field(default={}, description="hashes of the adapters that were given, by name")
    training: LoraTraining = Field(default=LoraTraining(), description="how adapters are trained")
    tokens: int = Field(default=96, ge=9, le=8192, description="tokens of a test document that are read")
    documents: int = Field(default=30, ge=1, le=100_000, description="documents of a domain to test on")
    calibration_documents: int | None = Field(
        default=None, ge=1, le=100_000, description="documents of a domain to calibrate on; default: as many as to test"
    )
    router_documents: int = Field(
        default=40, ge=1, le=100_000, description="training documents of a domain for the routers"
    )
    alpha: float = Field(default=0.05, gt=0, le=1, description="share of other texts on which a key may be active")
    risk: float = Field(default=DEFAULT_RISK, ge=0, le=1, description="largest harm of any router")
    score: ScoreName = Field(default="contest", description="confidence that the cut-off applies to")
    merges: tuple[str, ...] = Field(default=MERGES, description="merges of peft that are compared")
    scales: tuple[float, ...] = Field(
        default=(0.2, 0.5, 1.0), description="weights of a merge, chosen on validation documents"
    )


PRESETS = {
    # more documents to calibrate on than to test on: with n of them, 1 / (n + 1) of the risk is lost
    "default": AdaptersConfig(calibration_documents=60),
    # under a minute of one core for an adapter, and as few documents as a risk of 0.01 allows
    "quick": AdaptersConfig(
        preset="quick",
        training=LoraTraining(steps=20, tokens=64, lr=3e-3),
        tokens=48,
        documents=20,
        router_documents=8,
        merges=("linear", "cat", "ties", "dare_linear"),
        scales=(0.2, 0.5),
    ),
    # seconds, with a tiny model: for tests and first steps
    "tiny": AdaptersConfig(
        preset="tiny",
        training=LoraTraining(rank=2, steps=4, batch=2, tokens=16, lr=1e-2),
        tokens=24,
        documents=6,
        router_documents=6,
        alpha=0.2,
        risk=0.2,
        scales=(0.5,),
        merges=("linear", "cat"),
    ),
}


def get_preset(name: str) -> AdaptersConfig:
    """Return the settings of a preset."""
    if name not in PRESETS:
        raise RedxError(f"There is no preset {name!r} of adapters; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
