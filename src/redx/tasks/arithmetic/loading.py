"""Makes or reads arithmetic questions and divides them into splits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from redx.config import RunConfig
from redx.data import splits, tables
from redx.data.dataset import Data, Split
from redx.data.text import pack_texts
from redx.tasks.arithmetic.canonical import canonical
from redx.tasks.arithmetic.questions import HIGH, LOW, OPERAND, RANGES, domain_of, make

SHARES = (0.8, 0.1, 0.1)
BY_RANGE = tuple(f"range_{low}_{high}" for low, high in RANGES)  # domains of `addition` and `mixed`


def load(config: RunConfig, seed: int) -> Data:
    """Return questions that are made by seed or read from a file, divided 8 : 1 : 1."""
    import torch

    records = read_questions(config) if config.questions.file else make_questions(config, seed)
    texts = [record.get("question") or record["expr"] for record in records]
    keys = [canonical(record.get("expr") or text) for record, text in zip(records, texts, strict=True)]
    domains = tuple(sorted(config.questions.operations)) if by_operation(config) else BY_RANGE  # in order of experts
    low, high = (1 - OPERAND, HIGH + OPERAND) if config.task == "steps" else (LOW, HIGH)
    every = Split(
        pack_texts(texts),
        torch.tensor([record["answer"] - low for record in records]),
        torch.tensor([domains.index(domain_name(config, record)) for record in records]),
    )
    rows = splits.split_rows(keys, SHARES, config.split, seed)
    if config.task == "steps" and config.split == "random":
        rows = (torch.arange(len(keys)), *rows[1:])  # the experts of a pipeline train on every step of a chain
    train, validation, test = (every.only(chosen) for chosen in rows)
    seen = splits.share_seen([keys[row] for row in rows[0]], [keys[row] for row in rows[2]])
    classes = tuple(map(str, range(low, high + 1)))
    return Data(train, validation, test, domains, classes, config.split, seen)


def by_operation(config: RunConfig) -> bool:
    """Return whether there is one expert per operation; otherwise there is one per range of answers."""
    return config.task == "ops" or (config.task == "steps" and config.questions.experts == "operation")


def domain_name(config: RunConfig, record: dict[str, Any]) -> str:
    """Return the domain of a question; an answer outside all ranges belongs to the nearest one."""
    if by_operation(config):
        return record["operation"]
    return BY_RANGE[domain_of(min(max(record["answer"], LOW), HIGH))]


def make_questions(config: RunConfig, seed: int) -> list[dict[str, Any]]:
    """Return random questions for a task."""
    settings = config.questions
    if config.task == "steps":
        every = single_steps()
        return Random(f"{seed}/steps").sample(every, min(config.limit or len(every), len(every)))
    options = {
        "addition": {},
        "mixed": {"operators": tuple(range(1, settings.operators + 1))},
        "ops": {"operations": settings.operations},
    }
    return make(config.task, config.limit or settings.total, seed, **options[config.task])


def single_steps() -> list[dict[str, Any]]:
    """Return every step that a chain can have; those with operands below 10, which are few, are repeated."""
    records = []
    for name, first, second in product(("add", "sub"), range(1, HIGH + 1), range(1, OPERAND + 1)):
        answer = first + second if name == "add" else first - second
        text = f"What is {first} {'plus' if name == 'add' else 'minus'} {second}?"
        repeats = (1, 3, 8)[(first < 10) + (second < 10)]
        records += [{"question": text, "answer": answer, "operation": name}] * repeats
    return records


def read_questions(config: RunConfig) -> list[dict[str, Any]]:
    """Return a user's own questions: answers 2 to 100, and for `ops` the operation of every question."""

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
