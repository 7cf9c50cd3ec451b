"""A user's own data: texts in a table (`jsonl`), or features in an .npz file (`features`).

Domains are a column of the table, or clusters of the features, which are found without looking at labels. Labels may
be shared by domains. The split is 8 : 1 : 1 within every domain and label, with no text in two splits, or the user's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.config import (
    BankConfig,
    BankId,
    BaseConfig,
    OwnershipConfig,
    ReadingConfig,
    RouterConfig,
    RunConfig,
    TableConfig,
    TrainingConfig,
    TrunkConfig,
)
from redx.data import arrays, clusters, splits, tables
from redx.data.dataset import Data, Split
from redx.data.splits import split_by_domain
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.io.files import natural_order, to_safe_name
from redx.seeding import generator
from redx.tasks import MAIN_BANKS, Task, compared_banks
from redx.tasks.options import FEATURES as FEATURE_OPTIONS
from redx.tasks.options import TEXTS as TEXT_OPTIONS

if TYPE_CHECKING:
    from torch import Tensor


EXAMPLES = 20  # of all domains at least


LEAST = 5  # training examples of a domain


CLUSTER = 10  # examples of a cluster at least


CHARACTERS = 2000  # of a text that are read


PARTS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}


RESERVED = {"", "all", "pooled", "router"}  # names that mean something else in a run folder


def load_texts(config: RunConfig, seed: int) -> Data:
    """A table of texts: rows to splits."""
    table = _table(config)
    if table.domain and table.clusters:
        raise RedxError("Domains are either read or found; give --domain or --clusters, not both.")
    columns = [column for column in (table.label, table.domain, table.split) if column]

    def check(record: dict[str, Any]) -> None:
        tables.text_value(record, table.text)
        for column in columns:
            tables.name_value(record, column)
        if table.split:
            _part(record[table.split])

    path = Path(table.file or "")
    records = tables.read_table(path, check)[: config.limit]
    words = [tables.text_value(record, table.text)[:CHARACTERS].strip() for record in records]
    labels = [tables.name_value(record, table.label) for record in records]
    _check(path, labels)
    if table.domain:
        domains = [tables.name_value(record, table.domain) for record in records]
    else:
        domains = _cluster(_encode(config, words), table.clusters)
    parts = [_part(record[table.split]) for record in records] if table.split else None
    return assemble(config, seed, pack_texts(words), labels, domains, parts, words)


def load_features(config: RunConfig, seed: int) -> Data:
    """Arrays of features: `x` (N, D), `y` (N,), and where there are any `domain` (N,) and `split` (N,)."""
    import torch

    table = _table(config)
    path = Path(table.file or "")
    optional = [name for name in (table.domain, table.split) if name]
    found = arrays.read_arrays(path, [table.text, table.label], optional)
    numbers = arrays.to_matrix(path, table.text, found[table.text])
    names = {
        name: arrays.to_column(path, name, array, len(numbers))[: config.limit]
        for name, array in found.items()
        if name != table.text
    }
    x, labels = torch.from_numpy(numbers)[: config.limit], names[table.label]
    _check(path, labels)
    if table.domain in names and not table.clusters:
        domains = names[table.domain or ""]
    else:
        domains = _cluster((x - x.mean(0)) / x.std(0).clamp_min(1e-6), table.clusters)
    parts = None
    if table.split in names:
        faults: dict[int, str] = {}
        parts = []
        for row, value in enumerate(names[table.split or ""], 1):
            try:
                parts.append(_part(value))
            except ValueError as error:
                faults[row] = str(error)
        if faults:
            raise tables.faulty_rows(path, "Row", faults)
    keys = [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in x.numpy()]
    return assemble(config, seed, x, labels, domains, parts, keys)


def assemble(
    config: RunConfig,
    seed: int,
    inputs: Tensor,
    labels: Sequence[str],
    domains: Sequence[str],
    parts: Sequence[int] | None,
    keys: Sequence[str],
) -> Data:
    """Examples to splits; rows with the same key are the same example to a model."""
    import torch

    classes, found = tables.sorted_names(labels), tables.sorted_names(domains)
    if len(found) < 2:
        raise RedxError(
            f"All examples are of one domain, '{found[0]}'; give another --domain COLUMN, or leave it out for clusters."
        )
    named = dict(zip(found, folders(found), strict=True))
    found.sort(
        key=lambda name: natural_order(named[name])
    )  # as their folders stand, which is how a library orders experts
    number = {name: index for index, name in enumerate(classes)}
    place = {name: index for index, name in enumerate(found)}
    every = Split(inputs, torch.tensor([number[name] for name in labels]), torch.tensor([place[n] for n in domains]))
    rows = split_by_domain(keys, every, config.questions.split, seed) if parts is None else _given(parts)
    train, validation, test = (every.only(some) for some in rows)
    names = tuple(named[name] for name in found)
    for split, part in zip((train, validation, test), ("train", "validation", "test"), strict=True):
        if len(split) < 2:
            raise RedxError(f"There are {len(split)} examples for {part}, and 2 are the least; add examples.")
    counts = torch.bincount(train.domains, minlength=len(found)).tolist()
    for name, count in zip(found, counts, strict=True):
        if count < LEAST:
            raise RedxError(
                f"The domain '{name}' has {count} training examples, and {LEAST} are the least that an expert learns "
                "from; add examples, leave it out, or join it to another."
            )
    if len(train.labels.unique()) < 2:
        raise RedxError("All training examples have the same label; put examples of a second one into train.")
    learned, asked = ([keys[row] for row in list[int](some.tolist())] for some in (rows[0], rows[2]))
    seen = splits.share_seen(learned, asked)
    kind = config.questions.split if parts is None else "random" if seen else "disjoint"
    data = Data(train, validation, test, names, tuple(classes), kind, seen)
    _check_anchors(config, data, found, seed)
    return data


def folders(names: Sequence[str]) -> tuple[str, ...]:
    """Domain names that can be folders on any disk, each once; most stay as they are."""
    made: list[str] = []
    taken = set(RESERVED)
    for name in names:
        plain = to_safe_name(name[:50])
        chosen, count = plain, 1
        while chosen.casefold() in taken:
            count += 1
            chosen = f"{plain}-{count}"
        taken.add(chosen.casefold())
        made.append(chosen)
    return tuple(made)


def _table(config: RunConfig) -> TableConfig:
    if config.table is None or config.table.file is None:
        raise RedxError(f"Task '{config.task}' reads your own examples; give their file with --data FILE.")
    return config.table


def _check(path: Path, labels: Sequence[str]) -> None:
    if len(labels) < EXAMPLES:
        raise RedxError(f"{path} has {len(labels)} examples, and {EXAMPLES} are the least; add some.")
    if len(set(labels)) < 2:
        raise RedxError(f"All examples of {path} have the label '{labels[0]}'; there must be two labels to tell apart.")


def _check_anchors(config: RunConfig, data: Data, names: Sequence[str], seed: int) -> None:
    """Every expert needs shared examples outside its domain."""
    from redx.training.datasets import shared_rows

    domains = data.train.domains[shared_rows(data, config.base.share, seed, config.base.least)]
    for index, name in enumerate(names):
        if not bool((domains != index).any()):
            raise RedxError(
                f"The shared subset holds no example outside the domain '{name}', so its expert would not learn "
                "when to be quiet; add examples of other domains, or raise --share."
            )


def _part(value: object) -> int:
    """0, 1 or 2 for train, validation or test."""
    found = PARTS.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"has the split {value!r:.40}, which is none of train, validation, test")
    return found


def _given(parts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    told = torch.tensor(parts)
    train, validation, test = (torch.nonzero(told == part)[:, 0] for part in range(3))
    return train, validation, test


def _encode(config: RunConfig, words: Sequence[str]) -> Tensor:
    """Texts as points on a sphere, by the frozen part of the backbone: (N, D)."""
    from redx.models.backbones import hub
    from redx.models.backbones.language import FrozenLM

    reading = config.reading
    folder = hub.model_folder(config.backbone)
    prefix = FrozenLM(folder, reading.blocks, "mean", reading.precision, config.device, reading.tokens)
    prefix.prepare(list(dict.fromkeys(words)))
    x = prefix.read(words)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


def _cluster(x: Tensor, count: int) -> list[str]:
    """Found domains; the same for every seed of a run, like a column of the table."""
    wanted = count or min(clusters.choose_count(len(x)), len(x) // CLUSTER)
    found = clusters.find_clusters(x, wanted, CLUSTER, generator(0, "clusters")).tolist()
    return [f"cluster-{index + 1}" for index in found]


def read_texts(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Texts as bytes; what is beyond their first 2,000 characters is not read."""
    cut = [text[:CHARACTERS].strip() if isinstance(text, str) else text for text in inputs]
    return pack_texts(inputs if isinstance(inputs, str) else cut)


def read_features(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Features, (N, D)."""
    import torch

    try:
        x = torch.as_tensor(inputs, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedxError("This model reads features; give an array (N, D) of numbers.") from error
    if x.ndim != 2 or not bool(x.isfinite().all()):
        raise RedxError(f"This model reads finite features, (N, D), not an input of shape {tuple(x.shape)}.")
    return x


def settings(task: str, preset: str, table: TableConfig, epochs: int) -> RunConfig:
    """Banks plain and anchored, the anchored one also with conformal ownership, and pooled heads."""
    training = TrainingConfig(epochs=epochs, batch=64, virtual_batch=64, lr=2e-3, weight_decay=0.1, warmup=0.1)
    corrected = BankConfig(shape="lowrank", hidden=32, dropout=0.2, training=training)
    anchored = corrected.model_copy(update={"anchor": "margin"})
    head = BankConfig(shape="mlp", hidden=64, depth=1, dropout=0.2, training=training)
    linear = BankConfig(shape="linear", dropout=0.2, training=training)
    given = task == "features"
    return RunConfig(
        task=task,
        preset=preset,
        backbone="features" if given else "minilm-l6",
        table=table,
        reading=ReadingConfig(blocks=(-1,), pooling="mean", tokens=None if given else 256),
        base=BaseConfig(
            share=0.2,
            least=3,
            trunk=TrunkConfig(shape="mlp" if given else "linear", hidden=128, depth=1),
            dropout=0.2,
            training=training.model_copy(update={"epochs": 2 * epochs}),
        ),
        banks={
            **compared_banks(corrected, anchored, head),
            BankId("pooled", "linear"): linear,
            BankId("pooled", "mlp"): BankConfig(shape="mlp", hidden=256, depth=1, dropout=0.2, training=training),
        },
        main=MAIN_BANKS,
        # few validation examples support no smaller α; nobody stops early here, so nearly all of them are for cut-offs
        ownership=OwnershipConfig(alpha=0.05, score="binary", calibration=0.9, bank=head),
        router=RouterConfig(hidden=128, dropout=0.2, training=training),
    )


TEXTS, ARRAYS = TableConfig(), TableConfig(text="x", label="y", domain="domain", split="split")


TASKS = {
    "jsonl": Task(
        "jsonl",
        "Your own texts: a table (JSONL, CSV, Parquet) with labels and, if you like, domains.",
        {
            # redx run jsonl --preset quick --data FILE: to see everything once.
            "quick": settings("jsonl", "quick", TEXTS, 5),
            # redx run jsonl --data FILE --domain COLUMN: after reading the texts once, a minute for 20,000 of them.
            "default": settings("jsonl", "default", TEXTS, 20),
        },
        load_texts,
        read_texts,
        study="redx.tasks.custom.study",
        text=True,
        options=TEXT_OPTIONS,
    ),
    "features": Task(
        "features",
        "Your own features: an .npz file with x, y and, if you like, domain and split.",
        {
            # redx run features --preset quick --data FILE.npz: to see everything once.
            "quick": settings("features", "quick", ARRAYS, 5),
            # redx run features --data FILE.npz: seconds for thousands of examples.
            "default": settings("features", "default", ARRAYS, 20),
        },
        load_features,
        read_features,
        study="redx.tasks.custom.study",
        options=FEATURE_OPTIONS,
    ),
}
