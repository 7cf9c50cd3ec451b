"""Reads a user's own data and divides it into splits.

Domains are a column of the table, or clusters of the features that are computed without the labels. Domains may share
labels. The split is 8 : 1 : 1 within every domain and label, with no text in two splits, or the user's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redx.config import RunConfig, TableConfig
from redx.data import arrays, clusters, splits, tables
from redx.data.dataset import Data, Split
from redx.data.inputs import MAX_CHARACTERS
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.io.files import RESERVED, natural_order, to_safe_name
from redx.seeding import generator

if TYPE_CHECKING:
    from torch import Tensor

MIN_EXAMPLES = 20  # of all domains together
MIN_TRAIN = 5  # training examples of a domain
MIN_CLUSTER = 10  # examples of a cluster
SPLIT_INDEX = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}


def load_texts(config: RunConfig, seed: int) -> Data:
    """Return the splits of a table of texts."""
    table = _table_settings(config)
    if table.domain and table.clusters:
        raise RedxError("Domains come from a column or from clusters; give --domain or --clusters, not both.")
    columns = [column for column in (table.label, table.domain, table.split) if column]

    def check(record: dict[str, Any]) -> None:
        tables.text_value(record, table.text)
        for column in columns:
            tables.name_value(record, column)
        if table.split:
            _split_index(record[table.split])

    path = Path(table.file or "")
    records = tables.read_table(path, check)[: config.limit]
    texts = [tables.text_value(record, table.text)[:MAX_CHARACTERS].strip() for record in records]
    labels = [tables.name_value(record, table.label) for record in records]
    _check_labels(path, labels)
    if table.domain:
        domains = [tables.name_value(record, table.domain) for record in records]
    else:
        domains = _cluster_names(_embed_texts(config, texts), table.clusters)
    given = [_split_index(record[table.split]) for record in records] if table.split else None
    return build_data(config, seed, pack_texts(texts), labels, domains, given, texts)


def load_features(config: RunConfig, seed: int) -> Data:
    """Return the splits of an .npz file: `x` (N, D), `y` (N,), and optionally `domain` (N,) and `split` (N,)."""
    import torch

    table = _table_settings(config)
    path = Path(table.file or "")
    optional = [name for name in (table.domain, table.split) if name]
    values = arrays.read_arrays(path, [table.text, table.label], optional)
    numbers = arrays.to_matrix(path, table.text, values[table.text])
    names = {
        name: arrays.to_column(path, name, array, len(numbers))[: config.limit]
        for name, array in values.items()
        if name != table.text
    }
    x, labels = torch.from_numpy(numbers)[: config.limit], names[table.label]
    _check_labels(path, labels)
    if table.domain in names and not table.clusters:
        domains = names[table.domain or ""]
    else:
        domains = _cluster_names((x - x.mean(0)) / x.std(0).clamp_min(1e-6), table.clusters)
    given = None
    if table.split in names:
        faults: dict[int, str] = {}
        given = []
        for row, value in enumerate(names[table.split or ""], 1):
            try:
                given.append(_split_index(value))
            except ValueError as error:
                faults[row] = str(error)
        if faults:
            raise tables.faulty_rows(path, "Row", faults)
    keys = [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in x.numpy()]
    return build_data(config, seed, x, labels, domains, given, keys)


def build_data(
    config: RunConfig,
    seed: int,
    inputs: Tensor,
    labels: Sequence[str],
    domains: Sequence[str],
    given: Sequence[int] | None,
    keys: Sequence[str],
) -> Data:
    """Return examples divided into splits.

    Parameters
    ----------
    config
        Settings of the run.
    seed
        Seed of the division.
    inputs
        Inputs of N examples, (N, …).
    labels
        Name of the class of every example.
    domains
        Name of the domain of every example.
    given
        The user's own split, as the index of every example's split; None to divide at random.
    keys
        One key per example; rows with the same key are the same example to a model.
    """
    import torch

    classes, domain_names = tables.sorted_names(labels), tables.sorted_names(domains)
    if len(domain_names) < 2:
        raise RedxError(
            f"All examples are of one domain, '{domain_names[0]}'; give another --domain COLUMN, or leave it out for "
            "clusters."
        )
    folders = dict(zip(domain_names, folder_names(domain_names), strict=True))
    domain_names.sort(key=lambda name: natural_order(folders[name]))  # the order of the experts in a library
    class_index = {name: index for index, name in enumerate(classes)}
    domain_index = {name: index for index, name in enumerate(domain_names)}
    every = Split(
        inputs,
        torch.tensor([class_index[name] for name in labels]),
        torch.tensor([domain_index[name] for name in domains]),
    )
    rows = splits.split_by_domain(keys, every, config.split, seed) if given is None else _given_rows(given)
    train, validation, test = (every.only(chosen) for chosen in rows)
    for split, name in zip((train, validation, test), ("train", "validation", "test"), strict=True):
        if len(split) < 2:
            raise RedxError(f"There are {len(split)} examples for {name}, and 2 are the least; add examples.")
    counts = torch.bincount(train.domains, minlength=len(domain_names)).tolist()
    for name, count in zip(domain_names, counts, strict=True):
        if count < MIN_TRAIN:
            raise RedxError(
                f"The domain '{name}' has {count} training examples, and {MIN_TRAIN} are the least that an expert "
                "learns from; add examples, leave the domain out, or merge it with another."
            )
    if len(train.labels.unique()) < 2:
        raise RedxError("All training examples have the same label; put examples of a second one into train.")
    train_keys, test_keys = ([keys[row] for row in list[int](chosen.tolist())] for chosen in (rows[0], rows[2]))
    seen = splits.share_seen(train_keys, test_keys)
    kind = config.split if given is None else "random" if seen else "disjoint"
    names = tuple(folders[name] for name in domain_names)
    data = Data(train, validation, test, names, tuple(classes), kind, seen)
    _check_anchors(config, data, domain_names, seed)
    return data


def folder_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names that can be folders on any disk, one for every domain; most stay as they are."""
    chosen: list[str] = []
    taken = {"", *RESERVED}
    for name in names:
        safe = to_safe_name(name[:50])
        candidate, count = safe, 1
        while candidate.casefold() in taken:
            count += 1
            candidate = f"{safe}-{count}"
        taken.add(candidate.casefold())
        chosen.append(candidate)
    return tuple(chosen)


def _table_settings(config: RunConfig) -> TableConfig:
    if config.table is None or config.table.file is None:
        raise RedxError(f"Task '{config.task}' reads your own examples; give their file with --data FILE.")
    return config.table


def _check_labels(path: Path, labels: Sequence[str]) -> None:
    if len(labels) < MIN_EXAMPLES:
        raise RedxError(f"{path} has {len(labels)} examples, and {MIN_EXAMPLES} are the least; add some.")
    if len(set(labels)) < 2:
        raise RedxError(f"All examples of {path} have the label '{labels[0]}'; give examples of a second label.")
    tables.check_names(path, labels)


def _check_anchors(config: RunConfig, data: Data, names: Sequence[str], seed: int) -> None:
    """Refuse data whose shared subset has no example outside the domain of some expert."""
    from redx.training.datasets import shared_rows

    domains = data.train.domains[shared_rows(data, config.base.share, seed, config.base.least)]
    for index, name in enumerate(names):
        if not bool((domains != index).any()):
            raise RedxError(
                f"The shared subset has no example outside the domain '{name}', so its expert would not learn "
                "when to abstain; add examples of other domains, or raise --share."
            )


def _split_index(value: object) -> int:
    """Return 0, 1 or 2 for train, validation or test."""
    index = SPLIT_INDEX.get(str(value).strip().lower())
    if index is None:
        raise ValueError(f"has the split {value!r:.40}, which is none of train, validation, test")
    return index


def _given_rows(given: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of train, validation and test of a user's own split."""
    import torch

    indices = torch.tensor(given)
    train, validation, test = (torch.nonzero(indices == split)[:, 0] for split in range(3))
    return train, validation, test


def _embed_texts(config: RunConfig, texts: Sequence[str]) -> Tensor:
    """Return the features of texts from the frozen part of the backbone, scaled to unit length: (N, D)."""
    from redx.models.backbones import hub
    from redx.models.backbones.language import FrozenLM

    encoding = config.encoding
    folder = hub.model_folder(config.backbone)
    model = FrozenLM(
        folder, encoding.blocks, "mean", encoding.precision, config.device, encoding.tokens, runtime=encoding.runtime
    )
    model.prepare(list(dict.fromkeys(texts)))
    x = model.read(texts)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


def _cluster_names(x: Tensor, count: int) -> list[str]:
    """Return the cluster of every example as the name of a domain, the same for every seed of a run."""
    wanted = count or min(clusters.choose_count(len(x)), len(x) // MIN_CLUSTER)
    indices = clusters.find_clusters(x, wanted, MIN_CLUSTER, generator(0, "clusters")).tolist()
    return [f"cluster-{index + 1}" for index in indices]
