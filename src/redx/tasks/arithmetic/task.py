"""Arithmetic in words on a pretrained language model: 'What is 37 plus 12?', answers 2 to 100 as classes.

`addition` and `mixed` have an expert for each range of answers, `ops` one for each operation. `steps` solves chains:
its experts answer every single step that a chain can ask, and a decomposer finds the steps.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    OwnershipConfig,
    QuestionsConfig,
    ReadingConfig,
    RouterConfig,
    RunConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data import splits, tables
from redx.data.dataset import Data, Split
from redx.data.text import pack_texts
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.questions import HIGH, LOW, OPERAND, RANGES, domain_of, make
from redx.tasks.options import ADDITION, MIXED, OPERATIONS, STEPS

SHARES = (0.8, 0.1, 0.1)
BY_RANGE = tuple(f"range_{low}_{high}" for low, high in RANGES)


def load(config: RunConfig, seed: int) -> Data:
    """Made by seed, or from a file; 8 : 1 : 1."""
    import torch

    records = read_file(config) if config.questions.file else generate(config, seed)
    texts = [record.get("question") or record["expr"] for record in records]
    keys = [canonical(record.get("expr") or text) for record, text in zip(records, texts, strict=True)]
    owners = [owner(config, record) for record in records]
    domains = tuple(sorted(config.questions.operations)) if by_operation(config) else BY_RANGE  # as experts stand
    low, high = (1 - OPERAND, HIGH + OPERAND) if config.task == "steps" else (LOW, HIGH)
    every = Split(
        pack_texts(texts),
        torch.tensor([record["answer"] - low for record in records]),
        torch.tensor([domains.index(name) for name in owners]),
    )
    rows = splits.split_rows(keys, SHARES, config.questions.split, seed)
    if config.task == "steps" and config.questions.split == "random":
        rows = (torch.arange(len(keys)), *rows[1:])  # experts of a pipeline learn every step that can be asked
    train, validation, test = (every.only(some) for some in rows)
    seen = splits.share_seen([keys[row] for row in rows[0]], [keys[row] for row in rows[2]])
    classes = tuple(map(str, range(low, high + 1)))
    return Data(train, validation, test, domains, classes, config.questions.split, seen)


def by_operation(config: RunConfig) -> bool:
    return config.task == "ops" or (config.task == "steps" and config.questions.experts == "operation")


def owner(config: RunConfig, record: dict[str, Any]) -> str:
    """Whose question it is; what comes out of range is near one."""
    if by_operation(config):
        return record["operation"]
    return BY_RANGE[domain_of(min(max(record["answer"], LOW), HIGH))]


def singles() -> list[dict[str, Any]]:
    """Every step that a chain can ask, small numbers more often: there are few of them, and each is read otherwise."""
    records = []
    for name, first, second in product(("add", "sub"), range(1, HIGH + 1), range(1, OPERAND + 1)):
        answer = first + second if name == "add" else first - second
        text = f"What is {first} {'plus' if name == 'add' else 'minus'} {second}?"
        often = (1, 3, 8)[(first < 10) + (second < 10)]
        records += [{"question": text, "answer": answer, "operation": name}] * often
    return records


def generate(config: RunConfig, seed: int) -> list[dict[str, Any]]:
    """Questions by seed."""
    wanted = config.questions
    if config.task == "steps":
        every = singles()
        return Random(f"{seed}/steps").sample(every, min(config.limit or len(every), len(every)))
    options = {
        "addition": {},
        "mixed": {"operators": tuple(range(1, wanted.operators + 1))},
        "ops": {"operations": wanted.operations},
    }
    return make(config.task, config.limit or wanted.total, seed, **options[config.task])


def read_file(config: RunConfig) -> list[dict[str, Any]]:
    """A user's own questions: answers 2 to 100, and for `ops` the operation of each."""

    def check(record: dict[str, Any]) -> None:
        if not isinstance(record.get("question") or record.get("expr"), str):
            raise ValueError("has neither a 'question' nor an 'expr' that is text")
        if not (record.get("question") or record["expr"]).strip():
            raise ValueError("has an empty question")
        if not LOW <= record["answer"] <= HIGH:
            raise ValueError(f"has the answer {record['answer']}, which is not in {LOW} to {HIGH}")
        if config.task == "ops" and record["operation"] not in config.questions.operations:
            known = ", ".join(config.questions.operations)
            raise ValueError(f"has the operation {record['operation']!r}, which is none of {known}")

    fields: dict[str, type] = {"answer": int} | ({"operation": str} if config.task == "ops" else {})
    return tables.read_jsonl(Path(config.questions.file or ""), fields, check)[: config.limit]


def paper(task: str, preset: str, questions: QuestionsConfig, training: TrainingConfig) -> RunConfig:
    """The papers' own recipe: top blocks as trunk, linear heads, low-rank residuals without anchors, stage 4."""
    linear = BankConfig(shape="linear", training=training)
    return RunConfig(
        task=task,
        preset=preset,
        backbone="smollm2-135m",
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


def settings(task: str, preset: str, questions: QuestionsConfig, epochs: int, base_epochs: int) -> RunConfig:
    """Banks plain and anchored, the anchored one also with conformal ownership, and pooled heads."""
    training = TrainingConfig(epochs=epochs, batch=128, virtual_batch=128, lr=2e-3, weight_decay=0.1, warmup=0.2)
    pooled = training.model_copy(update={"batch": 256, "virtual_batch": 256})
    corrected = BankConfig(shape="lowrank", hidden=128, training=training)
    anchored = corrected.model_copy(update={"anchor": "truth"})
    head = BankConfig(shape="mlp", hidden=128, depth=1, training=training)
    by_class = task in ("addition", "mixed")
    return RunConfig(
        task=task,
        preset=preset,
        backbone="smollm2-135m",
        questions=questions,
        decomposer="pointer" if task == "steps" else "none",
        reading=ReadingConfig(blocks=(2,), pooling="tokens"),
        base=BaseConfig(
            share=0.2 if task == "steps" else 0.1,
            trunk=TrunkConfig(shape="sum", hidden=192, depth=2),
            teach="value",
            training=training.model_copy(update={"epochs": base_epochs, "lr": 5e-3, "beta": 0.99, "clip": 1.0}),
        ),
        banks={
            **compared_banks(corrected, anchored, head),
            BankId("pooled", "linear"): BankConfig(shape="linear", training=pooled),
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=512, depth=2, training=pooled),
        },
        main=MAIN_BANKS,
        ownership=OwnershipConfig(
            alpha=0.001 if task == "mixed" else 0.01,  # few validation questions support no smaller one
            score="classes" if by_class else "binary",
            bank=anchored if by_class else head,
        ),
        router=RouterConfig(training=training),
    )


CHAINS = QuestionsConfig(split="random")
SMALL, LARGE = QuestionsConfig(total=25_000), QuestionsConfig(total=80_000, operators=3)
EIGHT = TrainingConfig(
    epochs=8,
    batch=16,
    virtual_batch=128,
    lr=1e-4,
    weight_decay=0.01,
    warmup=0,
    schedule="constant",
    precision="float16",
)
SIXTY = TrainingConfig(
    epochs=60, batch=16, virtual_batch=64, lr=1e-4, weight_decay=0.01, warmup=0, schedule="constant", patience=3
)


def offer(name: str, about: str, questions: QuestionsConfig, study: str = "redx.tasks.arithmetic.study") -> Task:
    presets = {
        # redx run addition --preset quick: to see everything once.
        "quick": settings(name, "quick", questions.model_copy(update={"total": 10_000}), 4, 64),
        # redx run addition: under two minutes; base, red and any router 1.00 on unseen questions.
        # redx run mixed: about twelve minutes; 0.999 where the papers had 0.76.
        "default": settings(name, "default", questions, *((6, 128) if name == "steps" else (12, 192))),
        # redx run addition --preset paper: eight minutes; 0.02 to 0.2: the top blocks of a small model hardly learn so.
        "paper": paper(name, "paper", SMALL, EIGHT),
        # redx run mixed --preset paper-80k: hours on a CPU, made for a GPU; not run here, the papers had 0.76.
        "paper-80k": paper(name, "paper-80k", LARGE, SIXTY),
    }
    options = {"mixed": MIXED, "ops": OPERATIONS, "steps": STEPS}.get(name, ADDITION)
    return Task(name, about, presets, load, pack_texts, study=study, text=True, options=options)


TASKS = {
    "addition": offer("addition", "Sums of two numbers in words, an expert for each range of answers.", SMALL),
    "mixed": offer("mixed", "Additions and subtractions of two to four numbers, an expert for each range.", LARGE),
    "ops": offer("ops", "One addition or subtraction, an expert for each operation.", QuestionsConfig(total=40_000)),
    "steps": offer(
        "steps",
        "Chains of steps: a decomposer finds them, experts solve them.",
        CHAINS,
        study="redx.tasks.arithmetic.chain_study",
    ),
}
