"""The settings of a run; what a setting means stands beside it and becomes the help of the command line."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator


class BankId(NamedTuple):
    """The name of a bank of experts: its form and its own name, written `residual/plain`."""

    form: str  # residual, standalone, pooled or averaged
    name: str

    @classmethod
    def parse(cls, text: str) -> BankId:
        """Return the id that is written so; the inverse of `str`."""
        if not re.fullmatch(r"(standalone|residual|pooled|averaged)/[a-z0-9-]+", text):
            raise ValueError(f"a bank is named FORM/NAME, such as residual/plain, not {text!r}")
        return cls(*text.split("/"))

    @property
    def corrects_base(self) -> bool:
        """Whether its experts add to the logits of the base; otherwise they give logits of their own."""
        return self.form == "residual"

    def __str__(self) -> str:
        return f"{self.form}/{self.name}"


def _to_bank_id(value: Any) -> Any:
    return BankId.parse(value) if isinstance(value, str) else value


BankKey = Annotated[BankId, BeforeValidator(_to_bank_id), PlainSerializer(str, return_type=str)]  # a string in JSON
NoiseName = Literal["swap", "blur", "jitter", "drop", "permute"]


class StrictConfig(BaseModel):
    """Settings are values: frozen, and unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingConfig(StrictConfig):
    """How one stage is trained."""

    epochs: int = Field(default=30, ge=1, description="passes over the stage's own data, at most")
    batch: int = Field(default=128, ge=1, description="examples that go through the network at once")
    virtual_batch: int = Field(
        default=128, ge=1, description="examples a step of the optimiser sees, gathered over batches"
    )
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate of AdamW")
    beta: float = Field(default=0.999, gt=0, lt=1, description="how slowly AdamW forgets the size of past gradients")
    weight_decay: float = Field(default=1e-4, ge=0, description="decoupled weight decay")
    warmup: float = Field(
        default=0.05, ge=0, le=1, description="share of the steps in which the rate rises to its peak"
    )
    schedule: Literal["cosine", "constant"] = Field(default="cosine", description="what the rate does after that")
    clip: float | None = Field(default=None, gt=0, description="largest norm of a step's gradient")
    patience: int | None = Field(
        default=None, ge=1, description="epochs without gain on validation before it stops; best kept"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="of the products in training (autocast); weights stay float32"
    )


class BankConfig(StrictConfig):
    """One bank of experts, all of the same make: an expert a domain, or (pooled) one head for all."""

    shape: Literal["linear", "mlp", "lowrank"] = Field(description="the network of each expert")
    hidden: int = Field(
        default=64, ge=0, description="width of hidden layers, or the rank R of a low-rank expert; 0: a quarter of D"
    )
    depth: int = Field(default=2, ge=1, description="number of hidden layers of an mlp")
    activation: Literal["gelu", "relu", "tanh"] = Field(default="gelu", description="between the layers")
    standardise: bool = Field(default=False, description="train on standardised inputs, folded into the first layer")
    scale: float = Field(default=1.0, gt=0, description="factor on the output; small keeps a correction small")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of its inputs hidden from an expert in training")
    smoothing: float = Field(default=0.0, ge=0, lt=1, description="label smoothing: how far from certain to be taught")
    anchor: Literal["none", "truth", "size", "margin"] = Field(
        default="none", description="what holds an expert outside its domain: the labels, a small residual, the margin"
    )
    anchor_weight: float = Field(default=1.0, ge=0, description="weight of the anchor term")
    of: BankKey | None = Field(default=None, description="take the experts of this bank instead of training new ones")
    owned: bool = Field(default=False, description="an expert speaks only above its conformal cut-off")
    training: TrainingConfig = TrainingConfig()


class QuestionsConfig(StrictConfig):
    """The questions of an arithmetic task: made, or read from a file."""

    file: str | None = Field(default=None, description="JSONL file with the questions, instead of making them")
    total: int = Field(default=25_000, ge=100, description="questions to make for all three splits, repeats included")
    split: Literal["disjoint", "random"] = Field(
        default="disjoint", description="no question in two splits in any wording, or dealt out by chance"
    )
    operators: int = Field(default=2, ge=1, le=8, description="at most so many operators in a mixed question")
    operations: tuple[Literal["add", "sub", "mul", "div"], ...] = Field(
        default=("add", "sub"), min_length=2, description="operation, repeatable: one expert each"
    )
    experts: Literal["operation", "range"] = Field(
        default="operation", description="who solves the steps of chains: an expert for each operation, or range"
    )


class TableConfig(StrictConfig):
    """A user's own examples: a table of texts, or arrays of features."""

    file: str | None = Field(default=None, description="JSONL, CSV or Parquet file, or .npz with features")
    text: str = Field(default="text", description="column with the texts; of an .npz, the array with the features")
    label: str = Field(default="label", description="column with the labels, any words or numbers")
    domain: str | None = Field(
        default=None, description="column with the domains; without one they are found by clustering"
    )
    split: str | None = Field(
        default=None, description="column that says train, validation or test; without one 8 : 1 : 1 by seed"
    )
    clusters: int = Field(default=0, ge=0, description="domains to find by clustering; 0: two to eight, by size")


class ReadingConfig(StrictConfig):
    """What is read from a pretrained language model, all of it frozen."""

    blocks: tuple[int, ...] = Field(
        default=(2,), min_length=1, description="block to read, repeatable: 0 the embeddings, -1 the last"
    )
    pooling: Literal["mean", "last", "both", "tokens"] = Field(
        default="mean", description="over the tokens of a text: mean, last, both side by side, or none (tokens)"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of the frozen part: float32, bfloat16 or float16"
    )
    tokens: int | None = Field(default=None, ge=8, description="cut longer texts after so many tokens; else refused")


class TrunkConfig(StrictConfig):
    """What little of the base is trained between the frozen part and the classifier."""

    shape: Literal["none", "linear", "mlp", "sum", "blocks"] = Field(
        default="none",
        description="linear (h is the features) or mlp on pooled features, sum over a network on every token, "
        "or the top blocks (the papers')",
    )
    hidden: int = Field(default=512, ge=1, description="width of its layers")
    depth: int = Field(default=2, ge=1, le=3, description="layers of an mlp")
    blocks: int = Field(default=2, ge=1, description="top blocks to train")
    beside: bool = Field(default=True, description="experts and router read the frozen features beside h")


class BaseConfig(StrictConfig):
    """The base, trained on a small shared subset and then frozen."""

    trunk: TrunkConfig = TrunkConfig()
    teach: Literal["classes", "value"] = Field(
        default="classes", description="what it learns: classes, or the value of answers that are numbers in order"
    )
    share: float = Field(default=0.1, gt=0, le=1, description="share of the training split the base may see")
    least: int = Field(default=0, ge=0, description="examples of each label that the base sees at least")
    augment: bool = Field(default=False, description="distort the images anew in every step")
    smoothing: float = Field(default=0.0, ge=0, lt=1, description="label smoothing")
    copies: int = Field(default=0, ge=0, description="distorted copies of the shared subset that join the anchors")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of the features hidden from the classifier")
    training: TrainingConfig = TrainingConfig()


class OwnershipConfig(StrictConfig):
    """The experts' own scores of what is theirs, and how often they may be wrong about it."""

    alpha: float = Field(default=0.001, gt=0, le=1, description="α: how often an expert may speak out of turn")
    score: Literal["classes", "binary"] = Field(
        default="classes", description="own classes against the others, or (where domains share classes) own or not"
    )
    contradict: bool = Field(
        default=False, description="speak only where the base's answer is none of the expert's own classes"
    )
    calibration: float = Field(default=2 / 3, gt=0, lt=1, description="share of validation kept for the cut-offs alone")
    bank: BankConfig = BankConfig(shape="mlp", depth=1)


class RouterConfig(StrictConfig):
    """The router, trained after the experts."""

    shape: Literal["linear", "mlp", "keys"] = Field(
        default="mlp", description="linear, mlp (two layers), or keys: the experts' own scores, nothing to train"
    )
    hidden: int = Field(default=256, ge=1, description="width of the hidden layer")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of its inputs hidden from it in training")
    training: TrainingConfig = TrainingConfig()

    @property
    def is_trained(self) -> bool:
        """Whether there is a router to train; `keys` uses the experts' own scores."""
        return self.shape != "keys"


class RunConfig(StrictConfig):
    """All that decides the numbers of a run; `config.json` in the run folder is this, and replays it."""

    task: str = Field(description="what to run; `redx list` names the tasks")
    preset: str = Field(default="default", description="named settings of the task")
    seeds: tuple[int, ...] = Field(
        default=(0,), min_length=1, description="seed, repeatable: one independent repetition each"
    )
    backbone: str = Field(default="none", description="the frozen encoder: a name or a local folder")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where to train: cpu or cuda")
    threads: int = Field(default=0, ge=0, description="threads to train with; 0: as many as there are cores")
    data_dir: str | None = Field(default=None, description="local folder with the data files, instead of the cache")
    limit: int | None = Field(default=None, ge=100, description="use only so many training examples, for trials")
    questions: QuestionsConfig = QuestionsConfig()
    table: TableConfig | None = Field(default=None, description="the user's own examples, where the task reads them")
    decomposer: Literal["none", "pointer", "lm"] = Field(
        default="none", description="what turns a sentence into steps: pointer (small, fast) or lm (LoRA)"
    )
    reading: ReadingConfig = ReadingConfig()
    base: BaseConfig = BaseConfig()
    banks: dict[BankKey, BankConfig] = Field(
        description="banks by FORM/NAME; forms are standalone, residual and pooled"
    )
    main: dict[str, str] = Field(description="for each form, the bank that rule names without a bank refer to")
    average: bool = Field(default=False, description="also average the parameters of every standalone bank")
    ownership: OwnershipConfig = OwnershipConfig()
    router: RouterConfig = RouterConfig()
    integrate: bool = Field(default=False, description="stage 4: plain residuals and router together, on pooled data")
    noise: tuple[NoiseName, ...] = Field(
        default=("swap", "blur", "jitter", "drop", "permute"), description="noise kinds to sweep"
    )
    levels: tuple[float, ...] = Field(default=(0, 0.1, 0.25, 0.5, 0.75, 1), description="noise levels in [0, 1]")
    epsilons: tuple[float, ...] = Field(
        default=(0, 0.05, 0.1, 0.25, 0.5, 1), description="shares ε in [0, 1] to certify"
    )
    study: Literal["none", "quick", "full"] = Field(default="full", description="the task's own further experiments")

    def of_form(self, *forms: str) -> dict[BankId, BankConfig]:
        """Return the banks of these forms."""
        return {bank_id: bank for bank_id, bank in self.banks.items() if bank_id.form in forms}

    def main_bank(self, form: str) -> BankId:
        """Return the bank that rules of this form read when no bank is named; its name may be empty."""
        return BankId(form, self.main.get(form, ""))

    def trained_as(self, bank_id: BankId) -> BankId:
        """Return the bank whose trained experts this one uses: itself, unless it takes another bank's."""
        return self.banks[bank_id].of or bank_id

    @field_validator("banks")
    @classmethod
    def check_banks(cls, banks: dict[BankId, BankConfig]) -> dict[BankId, BankConfig]:
        for bank_id, bank in banks.items():
            if bank_id.form == "averaged":
                raise ValueError("an averaged bank is not trained; set average to have it")
            if bank.of is not None and bank.of not in banks:
                raise ValueError(f"bank '{bank_id}' takes the experts of '{bank.of}', which is not there")
        return banks

    @field_validator("seeds")
    @classmethod
    def check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if any(seed < 0 for seed in seeds):
            raise ValueError(f"a seed is a whole number from 0 on, not {min(seeds)}")
        if len(set(seeds)) < len(seeds):
            raise ValueError("each seed can stand only once")
        return seeds

    @field_validator("levels", "epsilons")
    @classmethod
    def check_shares(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        wrong = [share for share in shares if not 0 <= share <= 1]
        if wrong:
            raise ValueError(f"a level or ε lies between 0 and 1, not {wrong[0]}")
        return tuple(sorted(set(shares)))
