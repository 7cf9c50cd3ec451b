"""The tasks of arithmetic in words on a pretrained language model: "What is 37 plus 12?", with answers as classes.

`addition` and `mixed` have one expert per range of answers, `ops` one per operation. `steps` solves chains: its experts
answer every single step that a chain can have, and a decomposer writes the steps of a sentence.
"""

from __future__ import annotations

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    EncodingConfig,
    OwnershipConfig,
    QuestionsConfig,
    RouterConfig,
    RunConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data.dataset import Data
from redx.data.text import pack_texts
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.options import ADDITION, MIXED, OPERATIONS, STEPS

CHAINS = QuestionsConfig(decomposer="pointer")
SMALL, MEDIUM, LARGE = (
    QuestionsConfig(total=25_000),
    QuestionsConfig(total=40_000),
    QuestionsConfig(total=80_000, operators=3),
)
PAPER_TRAINING = TrainingConfig(
    epochs=8,
    batch=16,
    virtual_batch=128,
    lr=1e-4,
    weight_decay=0.01,
    warmup=0,
    schedule="constant",
    precision="float16",
)
PAPER_80K_TRAINING = TrainingConfig(
    epochs=60, batch=16, virtual_batch=64, lr=1e-4, weight_decay=0.01, warmup=0, schedule="constant", patience=3
)


_WEAK = {  # share of the questions, epochs of the router, epochs of the base
    # on unseen questions base 0.64, red 0.99, any router 0.64, pooled 1.00; experts on the shared questions alone 0.63
    "addition": (0.0065, 4, 256),
    # base 0.82, red 0.96 (papers: 0.76), any router 0.80, pooled 0.95; experts on the shared questions alone 0.84
    "mixed": (0.02, 4, 64),
}


def load(config: RunConfig, seed: int) -> Data:
    """Return the three splits: questions made from the seed, or read from the user's file."""
    from redx.tasks.arithmetic import loading  # imports torch, which listing the tasks must not

    return loading.load(config, seed)


def paper_config(task: str, preset: str, questions: QuestionsConfig, training: TrainingConfig) -> RunConfig:
    """Return the settings of the papers: top blocks as trunk, linear heads, low-rank residuals, joint training."""
    linear = BankConfig(shape="linear", training=training)
    return RunConfig(
        task=task,
        preset=preset,
        backbone="smollm2-135m",
        threads=2,
        questions=questions,
        base=BaseConfig(trunk=TrunkConfig(shape="blocks", blocks=2), training=training),
        banks={
            BankId("residual", "plain"): BankConfig(shape="lowrank", hidden=0, training=training),
            BankId("standalone", "plain"): linear,
            BankId("pooled", "linear"): linear,
        },
        main={"residual": "plain", "standalone": "plain", "pooled": "linear"},
        router=RouterConfig(training=training),
        integrate=True,
    )


def weak_base_config(
    task: str, preset: str, questions: QuestionsConfig, share: float, epochs: int, base_epochs: int, least: int = 0
) -> RunConfig:
    """Return the settings of a base that lacks questions, and of experts whose own questions teach what it lacks.

    The base learns from a small share of the questions until its accuracy rises no more. It codes a value, and its sum
    S is wide, so that experts find in S what the base could not learn from its questions. Residual experts, standalone
    heads and the pooled head predict the value, all by the same ridge regression.
    """
    training = TrainingConfig(epochs=epochs, batch=128, virtual_batch=128, lr=2e-3, weight_decay=0.1, warmup=0.1)
    few = task == "addition"  # 2,000 distinct questions
    shift = BankConfig(
        shape="shift", hidden=128, depth=0, fit="ridge", penalty=1e-4, anchor_weight=0.1, training=training
    )
    anchored, head = (shift.model_copy(update=update) for update in ({"anchor": "truth"}, {"shape": "value"}))
    base = {
        "epochs": base_epochs,
        "batch": 32,
        "virtual_batch": 32,
        "lr": 5e-3,
        "beta": 0.99,
        "clip": 1.0,
        "warmup": 0.2,
    }
    return RunConfig(
        task=task,
        preset=preset,
        backbone="smollm2-135m",
        threads=1,
        questions=questions,
        encoding=EncodingConfig(blocks=(2,), pooling="tokens"),
        base=BaseConfig(
            share=share,
            least=least,
            trunk=TrunkConfig(shape="sum", hidden=512 if few else 1024, depth=2),
            teach="value",
            training=training.model_copy(update=base),
        ),
        banks={
            **compared_banks(shift, anchored, head),
            BankId("pooled", "value"): head,
        },
        main=MAIN_BANKS | {"pooled": "value"},
        # nothing stops early, so nearly all of the few validation questions calibrate
        ownership=OwnershipConfig(calibration=0.9, bank=anchored),
        router=RouterConfig(add_ownership=True, training=training),  # each expert knows where its range ends
        budget="routing",  # an expert outside its range is silent, so what is left of the harm is its own mistakes
    )


def strong_base_config(task: str, preset: str, questions: QuestionsConfig, epochs: int, base_epochs: int) -> RunConfig:
    """Return the settings of a base that answers nearly everything: the compared banks and pooled heads."""
    training = TrainingConfig(epochs=epochs, batch=128, virtual_batch=128, lr=2e-3, weight_decay=0.1, warmup=0.2)
    pooled = training.model_copy(update={"batch": 256, "virtual_batch": 256})
    lowrank = BankConfig(shape="lowrank", hidden=128, training=training)
    anchored = lowrank.model_copy(update={"anchor": "truth"})
    head = BankConfig(shape="mlp", hidden=128, depth=1, training=training)
    by_class = task in ("addition", "mixed")
    return RunConfig(
        task=task,
        preset=preset,
        backbone="smollm2-135m",
        threads=1,
        questions=questions,
        split="random" if task == "steps" else "disjoint",
        encoding=EncodingConfig(blocks=(2,), pooling="tokens"),
        base=BaseConfig(
            share=0.2 if task == "steps" else 0.1,
            trunk=TrunkConfig(shape="sum", hidden=192, depth=2),
            teach="value",
            training=training.model_copy(update={"epochs": base_epochs, "lr": 5e-3, "beta": 0.99, "clip": 1.0}),
        ),
        banks={
            **compared_banks(lowrank, anchored, head),
            BankId("pooled", "linear"): BankConfig(shape="linear", training=pooled),
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=512, depth=2, training=pooled),
        },
        main=MAIN_BANKS,
        ownership=OwnershipConfig(kind="classes" if by_class else "binary", bank=anchored if by_class else head),
        router=RouterConfig(training=training),
    )


_TAKES = {  # a seed on two cores, by task and preset; others were not measured on a quiet machine
    "addition": {"paper": "about 8 minutes"},
}


def build_task(name: str, about: str, questions: QuestionsConfig, study: str = "redx.tasks.arithmetic.study") -> Task:
    """Return a task with its presets."""
    few = questions.model_copy(update={"total": 10_000})
    strong = strong_base_config(name, "strong", questions, *((6, 128) if name == "steps" else (12, 192)))
    presets = {
        # redx run ops --preset quick: to see everything once.
        "quick": strong_base_config(name, "quick", few, 4, 64),
        "default": strong.model_copy(update={"preset": "default"}),
        # redx run addition --preset paper: eight minutes; 0.02 to 0.2: the top blocks of a small model learn little.
        "paper": paper_config(name, "paper", SMALL, PAPER_TRAINING),
        # redx run mixed --preset paper-80k: hours on a CPU, made for a GPU; not run here, the papers had 0.76.
        "paper-80k": paper_config(name, "paper-80k", LARGE, PAPER_80K_TRAINING),
    }
    if name in ("addition", "mixed"):
        presets |= {
            # redx run addition --preset quick: to see everything once.
            "quick": weak_base_config(name, "quick", few, 0.016, 2, 64 if name == "addition" else 32, least=1),
            "default": weak_base_config(name, "default", questions, *_WEAK[name]),
            # redx run mixed --preset strong: base, red and any router 1.00, so that experts have nothing to add.
            "strong": strong,
        }
    options = {"mixed": MIXED, "ops": OPERATIONS, "steps": STEPS}.get(name, ADDITION)
    return Task(
        name,
        about,
        presets,
        load,
        pack_texts,
        study=study,
        text=True,
        options=options,
        extension="redx.tasks.arithmetic.extension" if name == "steps" else "",
        takes=_TAKES.get(name, {}) | {"paper-80k": "hours on a CPU"},
        downloads="language model, 90 MB",
    )


TASKS = {
    "addition": build_task("addition", "Sums of two numbers in words, an expert for each range of answers.", SMALL),
    "mixed": build_task("mixed", "Additions and subtractions of two to four numbers, an expert for each range.", LARGE),
    "ops": build_task("ops", "One addition or subtraction, an expert for each operation.", MEDIUM),
    "steps": build_task(
        "steps",
        "Chains of steps: a decomposer writes them, experts solve them.",
        CHAINS,
        study="redx.tasks.arithmetic.chain_study",
    ),
}
