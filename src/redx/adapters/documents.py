"""Documents with domains: a user's table of texts, or the default domains; split by document, and as token windows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from redx.data.tables import BROKEN, read_table
from redx.errors import RedxError
from redx.io.files import check_name, natural_order
from redx.seeding import generator

Part = Literal["train", "validation", "calibration", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "calibration", "test")
SHARES: dict[Part, float] = {
    "validation": 0.08,
    "calibration": 0.22,
    "test": 0.2,
}  # of a domain's documents; the rest is for training
MIN_DOCUMENTS = 8  # of a domain
MIN_TOKENS = 8  # of a document; shorter ones are left out
SAME_START = 300  # letters and digits; two documents that begin alike count as one


@dataclass(frozen=True)
class Document:
    """A text with the domain that it belongs to."""

    text: str
    domain: str


@dataclass(frozen=True)
class Window:
    """The first tokens of a document, with the index of its domain."""

    tokens: Tensor  # (T,)
    domain: int


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a table with the columns `text` and `domain`: JSONL, CSV, TSV or Parquet.

    Parameters
    ----------
    path
        The table, one document per row.

    Returns
    -------
    list of Document
        The documents, in the order of the file.
    """
    return [Document(row["text"], row["domain"]) for row in read_table(path, _check_row)]


def _check_row(row: dict[str, Any]) -> None:
    for column in ("text", "domain"):
        value = row.get(column)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"has no {column}")
        if BROKEN.search(value):
            raise ValueError(f"has a NUL or half a character in its {column}")
    try:
        check_name(row["domain"])
    except RedxError as error:
        raise ValueError(f"has a domain that no adapter can be called, {row['domain'][:40]!r}") from error


def split_documents(documents: Iterable[Document], seed: int) -> dict[str, dict[Part, list[Document]]]:
    """Divide the documents of every domain into training, validation, calibration and test documents.

    Parameters
    ----------
    documents
        Documents of any number of domains. Of several that begin with the same words, only the first is kept, so that
        no copy of a training document is tested.
    seed
        Decides the division.

    Returns
    -------
    dict
        Documents by domain, in natural order, and by part.
    """
    by_domain: dict[str, dict[str, Document]] = {}
    for document in documents:
        start = re.sub(r"\W+", "", document.text.casefold())[:SAME_START]
        key = hashlib.sha256(start.encode()).hexdigest()
        by_domain.setdefault(document.domain, {}).setdefault(key, document)
    splits: dict[str, dict[Part, list[Document]]] = {}
    for domain in sorted(by_domain, key=natural_order):
        kept = list(by_domain[domain].values())
        if len(kept) < MIN_DOCUMENTS:
            raise RedxError(
                f"The domain {domain!r} has {len(kept)} different documents, but {MIN_DOCUMENTS} are needed to train, "
                "calibrate and test; give more or leave it out."
            )
        order = torch.randperm(len(kept), generator=generator(seed, "documents", domain)).tolist()
        splits[domain] = {}
        for part, share in SHARES.items():
            count = max(1, round(share * len(kept)))
            splits[domain][part], order = [kept[index] for index in order[:count]], order[count:]
        splits[domain]["train"] = [kept[index] for index in order]
    return splits


def hash_documents(documents: Iterable[Document]) -> str:
    """Return a hash of documents, in their order."""
    sha = hashlib.sha256()
    for document in documents:
        sha.update(f"{document.domain}\0{document.text}\0".encode())
    return sha.hexdigest()[:32]


def windows(
    documents: dict[str, dict[Part, list[Document]]], part: Part, tokenizer: Any, tokens: int, at_most: int
) -> list[Window]:
    """Return one window per document: its first tokens.

    Parameters
    ----------
    documents
        Documents by domain and part.
    part
        Which part.
    tokenizer
        The tokenizer of the base.
    tokens
        Length of a window; a shorter document is taken whole.
    at_most
        Number of documents of a domain.

    Returns
    -------
    list of Window
        The windows of all domains, sorted by length.
    """
    result = []
    for index, parts in enumerate(documents.values()):
        for row in tokenise([document.text for document in parts[part]][: 2 * at_most], tokenizer):
            if len(row) >= MIN_TOKENS:
                result.append(Window(torch.tensor(row[:tokens]), index))
            if sum(window.domain == index for window in result) == at_most:
                break
    return sorted(result, key=lambda window: len(window.tokens))


def training_blocks(documents: Sequence[Document], tokenizer: Any, tokens: int, end: int) -> Tensor:
    """Return the training documents of a domain as blocks of equal length, (N, T).

    Every document ends with the end token, and documents follow one another, so that nothing is padded.
    """
    stream = [token for row in tokenise([document.text for document in documents], tokenizer) for token in (*row, end)]
    count = len(stream) // tokens
    if not count:
        raise RedxError(
            f"The training documents have {len(stream)} tokens, fewer than one block of {tokens}; give more."
        )
    return torch.tensor(stream[: count * tokens]).view(count, tokens)


def batches(items: Sequence[Window], rows: int) -> Iterator[list[Window]]:
    """Yield windows of equal length in batches, so that nothing is padded."""
    start = 0
    while start < len(items):
        stop = start + 1
        while stop < min(len(items), start + rows) and len(items[stop].tokens) == len(items[start].tokens):
            stop += 1
        yield list(items[start:stop])
        start = stop


def tokenise(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the tokens of texts without special tokens; the tokenizer's own truncation and padding are off."""
    if not texts:
        return []
    return tokenizer(list(texts), add_special_tokens=False, padding=False, truncation=False)["input_ids"]
