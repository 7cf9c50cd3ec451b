"""The files of CLINC150: found or downloaded, verified by hash, and read as the three official splits."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from redx.config import RunConfig
from redx.data.dataset import Data, Split
from redx.data.splits import share_seen
from redx.data.tables import sorted_names
from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import SOURCE_ERRORS, Digest, download, hash_stream, install, reason_of
from redx.io.files import check_name, natural_order
from redx.io.reading import is_file, read_bytes, read_json
from redx.seeding import generator

if TYPE_CHECKING:
    from torch import Tensor

QUERIES, DOMAINS = "data_full.json", "domains.json"
FILES = {
    QUERIES: Digest("sha256", "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0"),
    DOMAINS: Digest("sha256", "b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a"),
}
FOLDER = "clinc150"  # in the cache, and inside a folder of several data sets
VARIABLE = "REDX_DATA"
SPLITS = {"train": "train", "validation": "val", "test": "test"}  # the names in the file
WANTED = f"{QUERIES} and {DOMAINS} of github.com/clinc/oos-eval"
ADVICE = f"give --data-dir FOLDER or set {VARIABLE} to a folder with {WANTED}"

Queries = list[tuple[str, str]]  # texts and intents


@dataclass(frozen=True)
class IntentsSource:
    """Where the files of CLINC150 are downloaded from, and what they must be.

    Attributes
    ----------
    files
        The digest of each file, by file name.
    url
        The folder that holds the files.
    max_file_bytes
        Upper bound on the size of one file. The larger one has 2,495,390 bytes.
    """

    files: Mapping[str, Digest] = field(default_factory=lambda: dict(FILES))
    url: str = "https://raw.githubusercontent.com/clinc/oos-eval/master/data"
    max_file_bytes: int = 16 * 2**20

    def fault(self, folder: Path) -> str:
        """Return why a folder cannot be used, or nothing if it holds every file with the expected digest."""
        for name, digest in self.files.items():
            if not is_file(folder / name):
                return f"no {name}"
            try:
                content = io.BytesIO(read_bytes(folder / name, self.max_file_bytes))
                digest.check(hash_stream(content.read, digest.algorithm))
            except RedxError as error:
                return str(error).partition(";")[0]
            except SOURCE_ERRORS as error:
                return f"{name} is another file, {reason_of(error)}"
        return ""


def intents_folder(data_dir: Path | None = None, source: IntentsSource | None = None) -> Path:
    """Return a folder that holds the two verified files of CLINC150.

    Parameters
    ----------
    data_dir
        The user's own folder with the files, or with a folder `clinc150` that holds them. Without one, the folder in
        the environment variable REDX_DATA and the cache are tried, and then the files are downloaded into the cache.
    source
        What the files must be, and where they are downloaded from; the public repository by default.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    RedxError
        If no source has the files; the message lists what was tried.
    """
    source = source or IntentsSource()
    if data_dir is not None:
        folder, fault = _look_into(data_dir, source)
        if fault:
            raise RedxError(f"The files of CLINC150 are not in {data_dir} ({fault}); {ADVICE}.")
        return folder
    tried = [f"{VARIABLE}: not set"]
    if variable := os.environ.get(VARIABLE):
        folder, fault = _look_into(Path(variable).expanduser(), source)
        if not fault:
            return folder
        tried = [f"{VARIABLE}={variable}: {fault}"]
    cache = cache_folder() / FOLDER
    if not (fault := source.fault(cache)):
        return cache
    tried.append(f"{cache}: {fault}")
    try:
        for name, digest in source.files.items():
            content = io.BytesIO(download(f"{source.url}/{name}", source.max_file_bytes))
            install(content.read, cache / name, source.max_file_bytes, digest)
        return cache
    except SOURCE_ERRORS as error:
        tried.append(f"{source.url}: {reason_of(error)}")
    raise RedxError(f"CLINC150 could not be fetched ({'; '.join(tried)}); {ADVICE}.")


def _look_into(folder: Path, source: IntentsSource) -> tuple[Path, str]:
    """Return the folder itself or its folder `clinc150`, whichever holds the files, and what is wrong with it."""
    inner = folder / FOLDER
    chosen = inner if is_file(inner / QUERIES) and not is_file(folder / QUERIES) else folder
    return chosen, source.fault(chosen)


def load_intents(config: RunConfig, seed: int) -> Data:
    """Return the official splits of the queries in scope: 15,000 for train, 3,000 for validation, 4,500 for test.

    Parameters
    ----------
    config
        Settings of the run. `shots` keeps so many training examples of every intent, and `limit` so many in all.
    seed
        Seed of the choice of training examples.

    Returns
    -------
    Data
        Texts as bytes, intents as classes, and domains in the order of a library of experts.
    """
    folder = _config_folder(config)
    queries = _read_queries(folder)
    domain_of_intent = _read_domains(folder)
    for intent in {intent for name in SPLITS.values() for _, intent in queries[name]}:
        if intent not in domain_of_intent:
            raise RedxError(f"{folder / DOMAINS} has no domain for the intent {intent!r:.60}; {ADVICE}.")
    intents = sorted_names(list(domain_of_intent))
    domains = sorted(set(domain_of_intent.values()), key=natural_order)
    intent_index = {name: index for index, name in enumerate(intents)}
    domain_index = {name: index for index, name in enumerate(domains)}
    rows = [row for name in SPLITS.values() for row in queries[name]]
    every = Split(
        pack_texts([text for text, _ in rows]),
        torch.tensor([intent_index[intent] for _, intent in rows]),
        torch.tensor([domain_index[domain_of_intent[intent]] for _, intent in rows]),
    )
    parts = torch.arange(len(rows)).split([len(queries[name]) for name in SPLITS.values()])
    kept = choose_training_rows(every.labels[parts[0]], seed, config.shots, config.limit)
    known = [queries[SPLITS["train"]][row][0] for row in list[int](kept.tolist())]
    seen = share_seen(known, [text for text, _ in queries[SPLITS["test"]]])
    return Data(
        train=every.only(parts[0][kept]),
        validation=every.only(parts[1]),
        test=every.only(parts[2]),
        domains=tuple(domains),
        classes=tuple(intents),
        split="random" if seen else "disjoint",
        seen_in_train=seen,
    )


def choose_training_rows(labels: Tensor, seed: int, shots: int | None, limit: int | None) -> Tensor:
    """Return the training rows to keep, in the order of the split.

    Parameters
    ----------
    labels
        Classes of the training examples, (N,).
    seed
        Seed of the draw. Rows of fewer shots are among those of more shots.
    shots
        Largest number of examples of a class; None for all.
    limit
        Largest number of examples in all; None for all.

    Returns
    -------
    Tensor
        Row indices in ascending order.
    """
    order = torch.randperm(len(labels), generator=generator(seed, "intents", "shots"))
    if shots is not None:
        shuffled = labels[order]
        kept = [torch.nonzero(shuffled == label)[:shots, 0] for label in shuffled.unique()]
        order = order[torch.cat(kept).sort().values]
    return order[:limit].sort().values


def out_of_scope(config: RunConfig, splits: Sequence[str] = ("validation", "test")) -> tuple[Tensor, ...]:
    """Return the queries that belong to no intent: 100 for train, 100 for validation, 1,000 for test.

    Parameters
    ----------
    config
        Settings of the run, which say where the data are.
    splits
        Names of the splits.

    Returns
    -------
    tuple of Tensor
        For every split, texts as bytes, (N, L).
    """
    queries = _read_queries(_config_folder(config))
    return tuple(pack_texts([text for text, _ in queries[f"oos_{SPLITS[name]}"]]) for name in splits)


def _config_folder(config: RunConfig) -> Path:
    return intents_folder(Path(config.data_dir).expanduser() if config.data_dir else None)


def _read_queries(folder: Path) -> dict[str, Queries]:
    """Return texts with their intents by the name of their split in the file."""
    path = folder / QUERIES
    queries: dict[str, Queries] = read_json(
        path, dict[str, Queries], misfit="does not hold pairs of text and intent", missing=ADVICE, advice=ADVICE
    )
    for name in SPLITS.values():
        if not queries.get(name) or f"oos_{name}" not in queries:
            raise RedxError(f"{path} has no split {name!r} or none of out-of-scope queries; {ADVICE}.")
    return queries


def _read_domains(folder: Path) -> dict[str, str]:
    """Return the domain of every intent."""
    path = folder / DOMAINS
    domains: dict[str, list[str]] = read_json(
        path, dict[str, list[str]], misfit="does not hold lists of intents", missing=ADVICE, advice=ADVICE
    )
    pairs = [(intent, check_name(domain)) for domain, intents in domains.items() for intent in intents]
    if len(dict(pairs)) < len(pairs):
        raise RedxError(f"{path} has an intent in two domains; {ADVICE}.")
    return dict(pairs)
