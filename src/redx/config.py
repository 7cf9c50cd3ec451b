"""The settings of a run.

`RunConfig` contains all of them, and config.json in a run folder is a `RunConfig`. The description of a field is also
the help text of its option on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from redx.schema import DEFAULT_RISK as DEFAULT_RISK
from redx.schema import (
    MAX_SEED,
    MAX_TRUNK,
    MAX_WIDTH,
    BankKey,
    Count,
    NoiseName,
    ScoreName,
)
from redx.schema import BankConfig as BankConfig
from redx.schema import BankId as BankId
from redx.schema import StrictConfig as StrictConfig
from redx.schema import TrainingConfig as TrainingConfig

SHARED_ONLY = BankId("residual", "shared-only")  # the control: the same experts, trained on the shared subset alone


class QuestionsConfig(StrictConfig):
    """Settings of the questions of an arithmetic task: generated, or read from a file."""

    file: str | None = Field(default=None, description="JSONL file with the questions, instead of generated ones")
    total: Count = Field(default=25_000, ge=100, description="questions to generate for all splits, with repetitions")
    operators: int = Field(default=2, ge=1, le=8, description="largest number of operators in a mixed question")
    operations: tuple[Literal["add", "sub", "mul", "div"], ...] = Field(
        default=("add", "sub"), min_length=2, description="operation with an expert of its own, repeatable"
    )
    experts: Literal["operation", "range"] = Field(
        default="operation",
        description="experts that solve the steps of chains: one per operation, or one per range of answers",
    )
    decomposer: Literal["none", "pointer", "lm"] = Field(
        default="none", description="model that turns a sentence into steps: pointer (small, fast) or lm (LoRA)"
    )


class TableConfig(StrictConfig):
    """Settings of a user's own examples: a table of texts, or arrays of features."""

    file: str | None = Field(default=None, description="JSONL, CSV or Parquet file, or .npz file with features")
    text: str = Field(default="text", description="column with the texts; in an .npz file the array with the features")
    label: str = Field(default="label", description="column with the labels: words or numbers")
    domain: str | None = Field(default=None, description="column with the domains; without one, clusters define them")
    split: str | None = Field(
        default=None, description="column with train, validation or test; without one the split is 8 : 1 : 1 by seed"
    )
    clusters: int = Field(
        default=0, ge=0, le=1000, description="number of clusters; 0: two to eight, depending on the number of examples"
    )


MERGES = ("linear", "cat", "ties", "dare_linear", "dare_ties")  # of peft


class LoraTraining(StrictConfig):
    """Settings of the training of one LoRA adapter."""

    rank: int = Field(default=8, ge=1, le=1024, description="rank of the adapters")
    steps: int = Field(default=60, ge=1, le=100_000, description="training steps of an adapter")
    batch: int = Field(default=4, ge=1, le=1024, description="blocks of text of a step")
    tokens: int = Field(default=128, ge=8, le=8192, description="tokens of a block of text")
    lr: float = Field(default=2e-3, gt=0, le=1, description="peak learning rate")
    first_block: int = Field(default=0, ge=0, le=1000, description="first block of the model that is adapted")


class AdapterConfig(StrictConfig):
    """Settings of adapters of a language model: which there are, and how they are trained and tested."""

    train: bool = Field(default=False, description="train the adapters that are not given")
    given: tuple[str, ...] = Field(
        default=(), description="adapter of a domain as NAME=FOLDER, as peft saves it; repeatable"
    )
    domains: tuple[str, ...] = Field(default=(), description="use only this domain; repeatable")
    training: LoraTraining = LoraTraining()
    tokens: int = Field(default=96, ge=9, le=8192, description="tokens of a document that are read")
    documents: int = Field(default=30, ge=1, le=100_000, description="documents of a domain to test on")
    calibration: int = Field(default=2, ge=1, le=1000, description="calibration documents for every test document")
    router_documents: int = Field(
        default=40, ge=1, le=100_000, description="training documents of a domain that the router learns from"
    )
    merges: tuple[Literal["linear", "cat", "ties", "dare_linear", "dare_ties"], ...] = Field(
        default=MERGES, description="merge of peft to compare with, repeatable"
    )
    scales: tuple[float, ...] = Field(
        default=(0.2, 0.5, 1.0), min_length=1, description="weights of a merge, chosen on validation documents"
    )

    prompt: int = Field(
        default=32,
        ge=1,
        le=8192,
        description="first tokens of a document that decide for all of it, at most half of it",
    )
    request_risk: float | None = Field(
        default=None, ge=0, description="nats a token by which a router of a whole text may cost more than the base"
    )
    request_bound: float = Field(default=0.5, gt=0, description="nats a token above which a text costs no more")

    @field_validator("given", mode="before")
    @classmethod
    def check_given(cls, given: Any) -> Any:
        """Return adapters as texts NAME=FOLDER; a mapping is accepted too."""
        if isinstance(given, Mapping):
            return tuple(f"{name}={folder}" for name, folder in given.items())
        return given


class EncodingConfig(StrictConfig):
    """Settings of the features that are read from a frozen, pretrained language model."""

    blocks: tuple[int, ...] = Field(
        default=(2,), min_length=1, description="block to read, repeatable: 0 is the embeddings, -1 the last block"
    )
    pooling: Literal["mean", "last", "both", "tokens"] = Field(
        default="mean",
        description="pooling over the tokens of a text: mean, last, both (concatenated), or tokens (none)",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of the frozen part: float32, bfloat16 or float16"
    )
    tokens: int | None = Field(
        default=None, ge=8, description="cut longer texts after this number of tokens; without it they are refused"
    )
    runtime: Literal["torch", "int8", "onnx"] = Field(
        default="torch",
        description="what runs the frozen part: torch, onnx (ONNX Runtime) or int8 (torch with linear layers in 8-bit "
        "integers: faster, but about one answer in two hundred differs)",
    )


class TrunkConfig(StrictConfig):
    """Settings of the trunk: the trained part of the base between backbone and classifier."""

    shape: Literal["none", "linear", "mlp", "sum", "blocks"] = Field(
        default="none",
        description="linear (h is the features) or mlp on pooled features, sum over a network on every token, "
        "or the top blocks of the language model (as in the papers)",
    )
    hidden: int = Field(default=512, ge=1, le=MAX_TRUNK, description="width of the layers")
    depth: int = Field(default=2, ge=1, le=3, description="number of layers of an mlp")
    blocks: int = Field(default=2, ge=1, le=1000, description="number of top blocks to train")
    append_features: bool = Field(
        default=True, description="experts and router read the frozen features in addition to h"
    )


class BaseConfig(StrictConfig):
    """Settings of the base, which is trained on the shared subset and then frozen."""

    trunk: TrunkConfig = TrunkConfig()
    teach: Literal["classes", "value"] = Field(
        default="classes", description="training target: classes, or the value of answers that are ordered numbers"
    )
    share: float = Field(
        default=0.1, gt=0, le=1, description="share of the training split that the base learns from: the shared subset"
    )
    least: Count = Field(default=0, ge=0, description="smallest number of examples per label in the shared subset")
    augment: bool = Field(default=False, description="distort the images differently in every step")
    smoothing: float = Field(default=0.0, ge=0, lt=1, description="label smoothing")
    copies: int = Field(
        default=0, ge=0, le=1000, description="distorted copies of the shared subset that are added to the anchors"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the features before the classifier")
    start: Literal["random", "means"] = Field(
        default="random", description="what the classifier is before training: random, or the mean features of classes"
    )
    training: TrainingConfig = TrainingConfig()


class OwnershipConfig(StrictConfig):
    """Settings of the ownership scores of the experts, and of the calibration set."""

    kind: Literal["classes", "binary"] = Field(
        default="classes",
        description="own classes against the others, or (where domains share classes) own domain or not",
    )
    calibration: float = Field(
        default=2 / 3,
        gt=0,
        lt=1,
        description="share of the validation split that is the calibration set of risk control",
    )
    bank: BankConfig = BankConfig(shape="mlp", depth=1)


class StatisticsConfig(StrictConfig):
    """Settings of the statistics that owners share instead of data, whose sum is the base of RED."""

    use: bool = Field(
        default=False,
        description="whether the base is the ridge head on the sum of all owners' statistics; otherwise it is the base "
        "that was trained on the shared subset",
    )
    size: int = Field(
        default=1000,
        ge=0,
        le=4096,
        description="random features beside the features themselves; a file of statistics grows with their square",
    )
    seed: int = Field(default=0, ge=0, description="seed of the random features, the same for all owners")
    unit: bool = Field(default=True, description="scale the features of every example to the same length first")
    guided: float = Field(
        default=4.0,
        ge=0,
        le=1000,
        description="variance that the random directions gain by dimension in the span of the classifier of the shared "
        "examples' base, in units of their variance elsewhere",
    )
    shift: float = Field(
        default=0.0, ge=0, le=100, description="standard deviation of what is added to every random feature before relu"
    )
    weight: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="factor a of an expert's residual a · (f - B): what a weight of one moves the answer from the base "
        "B towards the expert's own answer f",
    )


class RouterConfig(StrictConfig):
    """Settings of the router, which is trained after the experts."""

    shape: str = Field(
        default="mlp",
        description="linear, mlp (two layers), keys (the ownership scores of the experts, without training), or the "
        "name of a router that a plugin brings",
    )
    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH, description="width of the hidden layer")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the inputs")
    add_ownership: bool = Field(
        default=False, description="add the ownership score of every expert to its gate, where experts have such scores"
    )
    training: TrainingConfig = TrainingConfig()

    @property
    def is_trained(self) -> bool:
        """Whether the router is trained; `keys` uses the ownership scores of the experts instead."""
        return self.shape != "keys"


class ModelConfig(StrictConfig):
    """What a model is: its backbone, base, experts, router and risk, with the settings that each is trained with."""

    backbone: str = Field(default="none", description="frozen encoder: a name or a local folder")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="device for training: cpu or cuda")
    encoding: EncodingConfig = EncodingConfig()
    base: BaseConfig = BaseConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    banks: dict[BankKey, BankConfig] = Field(description="banks by FORM/NAME; forms: standalone, residual, pooled")
    main: dict[str, str] = Field(description="by form, the bank that a rule without a bank reads")
    average: bool = Field(default=False, description="also average the parameters of every standalone bank")
    ownership: OwnershipConfig = OwnershipConfig()
    router: RouterConfig = RouterConfig()
    risk: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="largest harm of the worst router: share of examples that the base answers correctly and RED may "
        "not; without it 0.01, or the smallest that the calibration examples support",
    )
    by: Literal["all", "domain"] | None = Field(
        default=None,
        description="keep the risk on average over all examples (all), or in each domain and so for any mix of them "
        "(domain); without it by domain where every class belongs to one, and else over all examples",
    )
    small: Literal["merge", "silent"] = Field(
        default="merge",
        description="with by=domain: domains with too few calibration examples for the risk share a cut-off (merge), "
        "or their experts are silent (silent)",
    )
    budget: Literal["harm", "routing"] = Field(
        default="harm",
        description="what the risk bounds: all harm (harm), or the harm that routers do where the expert of the domain "
        "is right (routing)",
    )
    confidence: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="probability with which the risk is kept; without it, it is kept on average",
    )
    score: ScoreName = Field(
        default="contest",
        description="an expert's confidence: log-odds of its domain (ownership), of its answer (answer), their sum "
        "(both), its answer less the base's (gain), ownership and gain (all), or ownership against that of all other "
        "experts, and gain (contest)",
    )

    def of_form(self, *forms: str) -> dict[BankId, BankConfig]:
        """Return the settings of the banks of these forms, by bank."""
        return {bank_id: bank for bank_id, bank in self.banks.items() if bank_id.form in forms}

    @property
    def has_ownership(self) -> bool:
        """Whether the experts have ownership scores, which risk control, `keys` and some trained routers read."""
        read = not self.router.is_trained or self.router.add_ownership
        return read or any(bank.controlled for bank in self.banks.values())

    @property
    def controlled_bank(self) -> BankId | None:
        """The bank whose experts contribute above the cut-off of risk control, if there is one."""
        banks = self.banks.items()
        return next((bank_id for bank_id, bank in banks if bank.controlled and not bank.on_shared), None)

    def main_bank(self, form: str) -> BankId:
        """Return the bank that a rule of this form reads by default; its name is empty if there is none."""
        return BankId(form, self.main.get(form, ""))

    def trained_as(self, bank_id: BankId) -> BankId:
        """Return the bank whose trained experts this bank uses: itself, or the bank in its setting `experts_of`."""
        return self.banks[bank_id].experts_of or bank_id

    def for_shared_only(self) -> Self | None:
        """Return the settings of experts that learn from the shared subset alone; None without residual experts.

        They are those of the bank that RED reads: one under risk control, where there is one.
        """
        main = self.controlled_bank or self.main_bank("residual")
        if main not in self.banks:
            return None
        kept = {bank_id: self.banks[bank_id] for bank_id in dict.fromkeys((self.trained_as(main), main))}
        return self.model_copy(update={"banks": kept})

    @field_validator("banks")
    @classmethod
    def check_banks(cls, banks: dict[BankId, BankConfig]) -> dict[BankId, BankConfig]:
        """Return the banks, or refuse averaged banks and banks that use the experts of a missing bank."""
        if SHARED_ONLY in banks:
            raise ValueError(f"the name '{SHARED_ONLY}' is that of a control; choose another")
        for bank_id, bank in banks.items():
            if bank_id.form == "averaged":
                raise ValueError("an averaged bank is not trained; set average to true instead")
            if bank.fit in ("means", "lda") and bank_id.form != "pooled":
                raise ValueError(f"bank '{bank_id}' is fitted by gradient or ridge; '{bank.fit}' is for pooled heads")
            if bank.predicts_value and (bank.shape == "shift") != bank_id.corrects_base:
                raise ValueError(
                    f"bank '{bank_id}' has shape '{bank.shape}'; 'shift' is for residual banks, 'value' for others"
                )
            if bank.experts_of is not None and bank.experts_of not in banks:
                raise ValueError(f"bank '{bank_id}' uses the experts of '{bank.experts_of}', which does not exist")
        return banks

    @model_validator(mode="after")
    def check_values(self) -> ModelConfig:
        """Return the settings, or refuse experts that predict a value where the base codes none."""
        codes = self.base.trunk.shape == "sum" and self.base.teach == "value"
        for name, bank in (*self.banks.items(), ("ownership", self.ownership.bank)):
            if bank.predicts_value and not codes:
                raise ValueError(f"bank '{name}' predicts a value, which only a base with trunk 'sum' codes")
        if self.ownership.bank.shape == "value":
            raise ValueError("ownership scores correct the base; their shape is 'shift', not 'value'")
        return self


class RunConfig(ModelConfig):
    """All settings that determine the numbers of a run: the model's, and how it is made, divided and measured."""

    task: str = Field(description="task to run; `redx list` prints all tasks")
    preset: str = Field(default="default", description="named settings of the task")
    seeds: tuple[int, ...] = Field(
        default=(0,), min_length=1, description="seed, repeatable: every seed is an independent repetition"
    )
    threads: int = Field(default=0, ge=0, le=4096, description="threads for training; 0: as many as PyTorch uses")
    data_dir: str | None = Field(default=None, description="local folder with the data files, instead of the cache")
    limit: int | None = Field(default=None, ge=100, le=2**31, description="most training examples to use, for trials")
    shots: int | None = Field(default=None, ge=1, le=2**31, description="training examples a label, drawn by the seed")
    split: Literal["disjoint", "random"] = Field(
        default="disjoint", description="no question in two splits in any wording, or rows split at random"
    )
    questions: QuestionsConfig = QuestionsConfig()
    table: TableConfig | None = Field(default=None, description="the user's own examples, for tasks that read them")
    adapters: AdapterConfig | None = Field(default=None, description="adapters, for tasks on a language model")
    shared_only: bool = Field(
        default=True,
        description="also train the experts on the shared subset alone, to show what the owners' own examples bring",
    )
    integrate: bool = Field(
        default=False, description="stage 4: train plain residual experts and router together, on pooled data"
    )
    noise: tuple[NoiseName, ...] = Field(
        default=("swap", "blur", "jitter", "drop", "permute"), description="noise kinds to evaluate"
    )
    levels: tuple[float, ...] = Field(default=(0, 0.1, 0.25, 0.5, 0.75, 1), description="noise levels in [0, 1]")
    epsilons: tuple[float, ...] = Field(default=(0, 0.05, 0.1, 0.25, 0.5, 1), description="values of ε to certify")
    study: Literal["none", "quick", "full"] = Field(default="full", description="additional experiments of the task")

    @property
    def model(self) -> ModelConfig:
        """The settings of the model alone."""
        return ModelConfig.model_construct(**{name: getattr(self, name) for name in ModelConfig.model_fields})

    @field_validator("seeds")
    @classmethod
    def check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Return the seeds, or refuse negative and repeated ones."""
        if any(seed < 0 for seed in seeds):
            raise ValueError(f"a seed is an integer from 0 on, not {min(seeds)}")
        if max(seeds) > MAX_SEED:
            raise ValueError(f"a seed is at most {MAX_SEED}")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed can be given only once")
        return seeds

    @field_validator("levels", "epsilons")
    @classmethod
    def check_shares(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Return distinct levels or values of ε in ascending order, or refuse those outside [0, 1]."""
        outside = [share for share in shares if not 0 <= share <= 1]
        if outside:
            raise ValueError(f"a level or ε lies between 0 and 1, not {outside[0]}")
        return tuple(sorted(set(shares)))
