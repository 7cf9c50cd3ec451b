"""What settings are made of: identifiers of banks, names of choices, and the settings of training and of one bank."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

MAX_WIDTH, MAX_TRUNK = 2**16, 2**13  # of the layers of experts and router, and of a trunk
MAX_SEED = 2**63 - 1
Count = Annotated[int, Field(le=10_000_000)]  # of epochs, examples or questions


class BankId(NamedTuple):
    """The identifier of a bank of experts, written FORM/NAME, such as `residual/plain`.

    Attributes
    ----------
    form
        `residual`, `standalone`, `pooled` or `averaged`.
    name
        Name of the bank among the banks of its form.

    Examples
    --------
    >>> BankId.parse("residual/plain").form
    'residual'
    """

    form: str
    name: str

    @classmethod
    def parse(cls, text: str) -> BankId:
        """Return the bank id of a text such as `residual/plain`; the inverse of `str`.

        Raises
        ------
        ValueError
            If the text is not FORM/NAME.
        """
        if not re.fullmatch(r"(standalone|residual|pooled|averaged)/[a-z0-9-]+", text):
            raise ValueError(f"a bank is named FORM/NAME, such as residual/plain, not {text!r}")
        return cls(*text.split("/"))

    @property
    def corrects_base(self) -> bool:
        """Whether the experts output residuals, which are added to the logits of the base, and not logits."""
        return self.form == "residual"

    def __str__(self) -> str:
        return f"{self.form}/{self.name}"


def _to_bank_id(value: Any) -> Any:
    return BankId.parse(value) if isinstance(value, str) else value


BankKey = Annotated[BankId, BeforeValidator(_to_bank_id), PlainSerializer(str, return_type=str)]  # a string in JSON
ScoreName = Literal["ownership", "answer", "both", "gain", "all", "contest"]  # of `redx.composition.confidence`
DEFAULT_RISK = 0.01
NoiseName = Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]  # of `redx.composition.noise.NOISES`


class StrictConfig(BaseModel):
    """Base class of all settings: immutable, without unknown names, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingConfig(StrictConfig):
    """Settings of the training of one stage."""

    epochs: Count = Field(default=30, ge=1, description="largest number of epochs over the stage's own data")
    batch: Count = Field(default=128, ge=1, description="examples per forward pass")
    virtual_batch: Count = Field(default=128, ge=1, description="examples per optimiser step, accumulated over batches")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate of AdamW")
    beta: float = Field(default=0.999, gt=0, lt=1, description="second β of AdamW: decay of the squared gradients")
    weight_decay: float = Field(default=1e-4, ge=0, description="decoupled weight decay")
    warmup: float = Field(default=0.05, ge=0, le=1, description="share of the steps in which the learning rate rises")
    schedule: Literal["cosine", "constant"] = Field(default="cosine", description="learning rate after the warm-up")
    clip: float | None = Field(default=None, gt=0, description="largest norm of the gradient of a step")
    patience: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="epochs without improvement on validation before training stops; the best weights are kept",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of the matrix products (autocast); the weights stay float32"
    )


class BankConfig(StrictConfig):
    """Settings of a bank: one expert per domain, or for a pooled bank one head for all domains."""

    shape: Literal["linear", "mlp", "lowrank", "shift", "value"] = Field(
        description="network of an expert; shift (a residual) and value (a head) predict the value of an answer, for a "
        "base that codes values"
    )
    hidden: int = Field(
        default=64,
        ge=0,
        le=MAX_WIDTH,
        description="width of the hidden layers, or the rank R of a low-rank expert; 0: a quarter of D",
    )
    depth: int = Field(default=2, ge=0, le=32, description="number of hidden layers of an mlp, a shift or a value")
    activation: Literal["gelu", "relu", "tanh"] = Field(default="gelu", description="activation between the layers")
    standardise: bool = Field(default=False, description="train on standardised inputs (folded into the first layer)")
    scale: float = Field(default=1.0, gt=0, description="factor on the output; a small factor keeps a residual small")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the inputs of an expert")
    smoothing: float = Field(default=0.0, ge=0, lt=1, description="label smoothing")
    anchor: Literal["none", "truth", "size", "margin"] = Field(
        default="none",
        description="loss outside the expert's domain: cross-entropy (truth), size of the residual, or loss of margin",
    )
    anchor_weight: float = Field(default=1.0, ge=0, description="weight of the anchor loss")
    fit: Literal["gradient", "means", "lda", "ridge"] = Field(
        default="gradient",
        description="how a head is fitted: by gradient, or in closed form (the other three); means and lda are for "
        "pooled heads",
    )
    penalty: float = Field(default=1e-4, ge=0, description="λ of a ridge regression of experts")
    experts_of: BankKey | None = Field(
        default=None, description="use the experts of this bank instead of training new ones"
    )
    controlled: bool = Field(
        default=False, description="an expert contributes only where its confidence exceeds the cut-off of risk control"
    )
    on_shared: bool = Field(
        default=False,
        description="correct the base of the shared subset, also where the base is the sum of owners' statistics",
    )
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def check_fit(self) -> BankConfig:
        """Return the settings, or refuse a network that the closed form cannot fit."""
        mlp = (self.shape, self.depth, self.activation) == ("mlp", 1, "relu")
        solvable = (mlp or (self.predicts_value and self.depth == 0)) and self.anchor != "margin"
        if self.fit != "gradient" and not (solvable if self.fit == "ridge" else self.shape == "linear"):
            raise ValueError(
                "fit 'ridge' is for an mlp of depth 1 with relu, and for a shift or value of depth 0, both without the "
                "anchor 'margin'; 'means' and 'lda' are for a linear head"
            )
        if self.predicts_value and (self.standardise or self.dropout or self.smoothing):
            raise ValueError("experts that predict a value have no dropout, no smoothing and no standardised inputs")
        return self

    @property
    def predicts_value(self) -> bool:
        """Whether its networks predict the value of an answer, which the base's code turns into classes."""
        return self.shape in ("shift", "value")
