"""Documents with domains: a user's table of texts, divided by document, and as token windows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from redx.data.dataset import Data, Split
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


Documents = dict[str, dict[Part, list[Document]]]  # by domain and part


@dataclass(frozen=True)
class DocumentSplit(Split):
    """The documents of one split, which have no class and any length; a hash of the texts stands for the inputs."""

    texts_hash: str = ""

    @staticmethod
    def of(documents: Documents, parts: Sequence[Part], read: str = "") -> DocumentSplit:
        """Return the documents of some parts as a split; `read` says how much of them is read, for the hash."""
        every = [(index, one) for index, own in enumerate(documents.values()) for part in parts for one in own[part]]
        domains = torch.tensor([index for index, _ in every])
        texts = hash_documents([*(document for _, document in every), Document(read, "")])
        return DocumentSplit(torch.empty(len(every), 0), torch.zeros_like(domains), domains, texts)

    def digest(self) -> str:
        """Return a hash of the documents in their order."""
        return self.texts_hash


@dataclass(frozen=True)
class DocumentData(Data):
    """The documents of a run as splits that can be counted and compared, with the documents themselves."""

    documents: Documents = field(default_factory=dict)

    @staticmethod
    def of(documents: Documents, read: str) -> DocumentData:
        """Return the data of divided documents; calibration documents count as validation."""
        chosen: tuple[tuple[Part, ...], ...] = (("train",), ("validation", "calibration"), ("test",))
        train, validation, test = (DocumentSplit.of(documents, parts, read) for parts in chosen)
        return DocumentData(train, validation, test, tuple(documents), (), "disjoint", 0.0, documents=documents)


def read_documents(path: Path, text: str = "text", domain: str = "domain") -> list[Document]:
    """Return the documents of a table with a column of texts and one of domains: JSONL, CSV, TSV or Parquet.

    Parameters
    ----------
    path
        The table, one document per row.
    text, domain
        Names of the two columns.

    Returns
    -------
    list of Document
        The documents, in the order of the file.
    """
    return [Document(row[text], row[domain]) for row in read_table(path, partial(_check_row, text, domain))]


def _check_row(text: str, domain: str, row: dict[str, Any]) -> None:
    for column in (text, domain):
        value = row.get(column)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"has no {column}")
        if BROKEN.search(value):
            raise ValueError(f"has a NUL or half a character in its {column}")
    try:
        check_name(row[domain])
    except RedxError as error:
        raise ValueError(f"has a domain that no adapter can be called, {row[domain][:40]!r}") from error


def split_documents(documents: Iterable[Document], seed: int) -> Documents:
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
    splits: Documents = {}
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


def windows(documents: Documents, part: Part, tokenizer: Any, tokens: int, at_most: int) -> list[Window]:
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

    Raises
    ------
    RedxError
        If a domain has no document that is long enough.
    """
    result = []
    for index, parts in enumerate(documents.values()):
        for row in tokenise([document.text for document in parts[part]][: 2 * at_most], tokenizer):
            if len(row) >= MIN_TOKENS:
                result.append(Window(torch.tensor(row[:tokens]), index))
            if sum(window.domain == index for window in result) == at_most:
                break
    found = {window.domain for window in result}
    if missing := [name for index, name in enumerate(documents) if index not in found]:
        raise RedxError(f"The {part} documents of {missing[0]!r} are all too short; give longer documents.")
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


def tokenise(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the tokens of texts without special tokens; the tokenizer's own truncation and padding are off."""
    if not texts:
        return []
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in (text if not text.isascii() else "")):
        raise RedxError("A text holds half of a surrogate pair, which no tokenizer reads; leave it out.")
    return tokenizer(list(texts), add_special_tokens=False, padding=False, truncation=False)["input_ids"]
