"""Statistics of owners' examples, whose sum gives the ridge head on all data pooled without any data leaving an owner.

With a fixed feature map φ every owner k computes once, from its own examples alone,

    G_k = Σ φ(x) φ(x)ᵀ  (M, M)        c_k = Σ φ(x) onehot(y)ᵀ  (M, C_k)        n_k = examples by class  (C_k,)

and the head `φ(x)ᵀ (Σ_k G_k + λ I)⁻¹ Σ_k c_k` is exactly the ridge regression to one-hot labels on the union of the
examples. Leaving out an owner is leaving out a term. Sums are taken in double precision in the order of the owners'
names, so they do not depend on who came first. (Known as analytic federated learning.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from redx.data.dataset import Split
from redx.data.rows import hash_rows
from redx.errors import RedxError
from redx.io.files import write_tensors
from redx.io.hashing import hash_tensors
from redx.io.reading import guarded, parse_json
from redx.io.safetensors_files import open_safetensors
from redx.models.feature_map import LARGEST, FeatureMap, MapSettings

BLOCK = 256  # rows of G that are computed at once
ROWS = 4096  # examples whose random features are in memory at once
KEY, ADVICE = "statistics", "let their owner compute them anew with `redx experts train`"
FILE = "statistics.safetensors"  # in the folder of an expert


class StatisticsFile(MapSettings):
    """What a file of statistics says beside its tensors."""

    classes: tuple[str, ...] = Field(max_length=2**16)
    base: str


@dataclass(frozen=True)
class Statistics:
    """What one owner gives of its examples: second moments of φ, its sums by class, and counts.

    Attributes
    ----------
    map
        The feature map.
    classes
        The classes of the columns, C_k of them.
    upper
        The upper triangle of G, row by row, (M (M + 1) / 2,), in double precision.
    moments
        c, (M, C_k), in double precision.
    counts
        Examples by class, (C_k,).
    base
        Hash of the weights of the base whose features were read; empty where nobody compares it.
    """

    map: FeatureMap
    classes: tuple[str, ...]
    upper: Tensor
    moments: Tensor
    counts: Tensor
    base: str = ""

    @property
    def examples(self) -> int:
        """The number of examples that were summed."""
        return int(self.counts.sum())

    @cached_property
    def gram(self) -> Tensor:
        """G, (M, M), which takes time and memory to put together."""
        return unpack(self.upper, self.map.outputs)

    def rounded(self) -> Statistics:
        """Return these statistics as a file holds them, in single precision."""
        upper, moments = (value.float().double() for value in (self.upper, self.moments))
        return replace(self, upper=upper, moments=moments)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is saved: the upper triangle of G and c in single precision, and the counts."""
        return {
            "gram": self.upper.float(),
            "moments": self.moments.float().contiguous(),
            "counts": self.counts.long(),
        }

    def describe(self) -> dict[str, Any]:
        """Return what is saved beside the tensors."""
        return {**self.map.settings(), "classes": list(self.classes), "base": self.base}

    @property
    def mark(self) -> str:
        """A hash of all that is saved, by which an expert names its statistics."""
        return hash_tensors(self.tensors(), json.dumps(self.describe()))

    def save(self, path: Path) -> None:
        """Write a file that `read_statistics` reads."""
        write_tensors(path, self.tensors(), {KEY: json.dumps(self.describe())})

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Statistics:
        """Return statistics that were saved, after checking that their tensors fit one another.

        Raises
        ------
        RedxError
            Where tensors are missing, have other shapes or types, or are not finite.
        """
        described = StatisticsFile.model_validate(dict(about))
        features, classes = described.map, described.classes
        size = features.outputs
        if size > LARGEST:
            raise RedxError(f"The statistics have {size} features; at most {LARGEST} are read.")
        if len(set(classes)) < len(classes):
            raise RedxError(f"The statistics name a class twice; {ADVICE}.")
        shapes = {"gram": (size * (size + 1) // 2,), "moments": (size, len(classes)), "counts": (len(classes),)}
        if more := sorted(set(tensors) - set(shapes)):
            raise RedxError(f"The statistics hold other tensors ({more[0]!r:.100}) than they should; {ADVICE}.")
        for name, shape in shapes.items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                raise RedxError(f"The tensor {name!r} of the statistics has not the shape {shape}; {ADVICE}.")
        counts = tensors["counts"]
        if counts.dtype != torch.int64 or not bool((counts >= 0).all()) or not int(counts.sum()):
            raise RedxError(f"The statistics count no examples; {ADVICE}.")
        gram, moments = tensors["gram"], tensors["moments"]
        if gram.dtype != torch.float32 or moments.dtype != torch.float32:
            raise RedxError(f"The statistics are not in single precision; {ADVICE}.")
        if not bool(gram.isfinite().all() and moments.isfinite().all()):
            raise RedxError(f"The statistics hold NaN or infinity; {ADVICE}.")
        return Statistics(features, classes, gram.double(), moments.double(), counts, described.base)

    def check_possible(self) -> None:
        """Refuse sums that no examples have.

        G must be positive semidefinite, `c_jc² ≤ G_jj n_c` by the inequality of Cauchy and Schwarz, and the entries
        of the constant feature are counts.

        Raises
        ------
        RedxError
            Where no examples have these sums.
        """
        diagonal, one = self.gram.diagonal(), self.map.plain - 1
        slack = 1e-5 * float(diagonal.clamp_min(0).mean()) + 1e-12
        allowed = diagonal.clamp_min(0)[:, None] * self.counts.double()
        if bool((diagonal < 0).any()) or bool((self.moments.square() > allowed * (1 + 1e-4) + slack).any()):
            raise RedxError(f"The statistics are no sums of examples (too large for their counts); {ADVICE}.")
        counted = torch.cat([self.gram[one, one : one + 1], self.moments[one]])
        expected = torch.cat([self.counts.sum()[None], self.counts]).double()
        if not torch.allclose(counted, expected, rtol=1e-5, atol=1e-3):
            raise RedxError(f"The statistics are no sums of examples (other numbers than they say); {ADVICE}.")
        if self.map.unit and self.map.linear:
            longest = self.examples * self.map.width
            if float(diagonal[: self.map.width].sum()) > longest * (1 + 1e-4):
                raise RedxError(f"The statistics are no sums of examples (features of another size); {ADVICE}.")
        shifted = self.gram + slack * torch.eye(len(self.gram), dtype=torch.float64)
        if int(torch.linalg.cholesky_ex(shifted).info):
            raise RedxError(f"The statistics are no sums of examples (not positive semidefinite); {ADVICE}.")


def read_statistics(path: Path) -> Statistics:
    """Return the statistics in a file.

    Raises
    ------
    RedxError
        If the file is missing, damaged, or holds anything else.
    """
    with open_safetensors(path, advice=ADVICE, strict=True) as file, guarded(path, "holds no statistics", ADVICE):
        about = parse_json(file.metadata[KEY])
        try:
            return Statistics.from_tensors({name: file.get(name) for name in file.header}, about)
        except RedxError as error:
            raise RedxError(f"{path}: {error}") from error


def collect(map: FeatureMap, h: Tensor, labels: Tensor, classes: Sequence[str], base: str = "") -> Statistics:
    """Return the statistics of examples; each example must be counted by one owner only.

    Parameters
    ----------
    map
        The feature map.
    h
        Standardised features, (N, E).
    labels
        Indices into `classes`, (N,).
    classes
        The classes; those without examples get no column.
    base
        Hash of the weights of the base, which the file carries along.

    Examples
    --------
    >>> found = collect(FeatureMap(2, 0), torch.eye(2), torch.tensor([1, 1]), ["a", "b"])
    >>> found.classes, found.moments[:, 0].tolist()
    (('b',), [1.0, 1.0, 2.0])
    """
    if not len(h):
        raise RedxError("There are no examples to compute statistics of; give some, or leave out the statistics.")
    present = labels.unique()  # (C_k,), in order
    columns = torch.searchsorted(present, labels)
    upper = torch.zeros(map.outputs * (map.outputs + 1) // 2, dtype=torch.float64)
    moments = torch.zeros(len(present), map.outputs, dtype=torch.float64)
    for rows, owned in zip(h.split(ROWS), columns.split(ROWS), strict=True):
        features = map(rows).double()  # (B, M)
        upper += second_moments(features)
        moments.index_add_(0, owned, features)
    names = tuple(str(classes[label]) for label in present.tolist())
    counts = torch.bincount(columns, minlength=len(present))
    return Statistics(map, names, upper, moments.T.contiguous(), counts, base)


def second_moments(features: Tensor) -> Tensor:
    """Return the upper triangle of `Σ φ φᵀ`, row by row, of features (N, M); what lies below is not computed."""
    pieces = []
    for first in range(0, features.shape[1], BLOCK):
        rows = features[:, first : first + BLOCK].T @ features[:, first:]
        pieces += [row[place:] for place, row in enumerate(rows)]
    return torch.cat(pieces)


def unpack(upper: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix, (M, M), of an upper triangle."""
    whole = upper.new_zeros(size, size)
    for place, row in enumerate(upper.split(tuple(range(size, 0, -1)))):
        whole[place, place:] = row
    return whole + whole.triu(1).T


def without_shared(own: Split, shared: Split) -> Split:
    """Return the examples of an owner that are not among the shared ones, which are counted once for all owners.

    Parameters
    ----------
    own, shared
        Examples as features. A row that occurs twice among the owner's and once among the shared is kept once.
    """
    known: dict[tuple[int, int], int] = {}
    for row in zip(hash_rows(shared.inputs, "").tolist(), shared.labels.tolist(), strict=True):
        known[row] = known.get(row, 0) + 1
    kept = []
    for place, row in enumerate(zip(hash_rows(own.inputs, "").tolist(), own.labels.tolist(), strict=True)):
        if known.get(row, 0):
            known[row] -= 1
        else:
            kept.append(place)
    return own.only(torch.tensor(kept, dtype=torch.long))


def add_up(owners: Mapping[str, Statistics], classes: Sequence[str]) -> Statistics:
    """Return the sum over owners, with one column for every class, in the order of `classes`.

    Parameters
    ----------
    owners
        Statistics by owner, in any order.
    classes
        All classes; a class that no owner has keeps zeros.

    Raises
    ------
    RedxError
        Where owners have other feature maps, or a class that is not among these.
    """
    if not owners:
        raise RedxError("There are no statistics to add up; give those of at least one owner.")
    places = {label: place for place, label in enumerate(classes)}
    if len(places) < len(classes):
        raise RedxError("A class is named twice; give every class once.")
    first = owners[min(owners)]
    size = first.map.outputs
    upper = torch.zeros(size * (size + 1) // 2, dtype=torch.float64)
    moments = torch.zeros(size, len(classes), dtype=torch.float64)
    counts = torch.zeros(len(classes), dtype=torch.int64)
    for name in sorted(owners):
        own = owners[name]
        if own.map != first.map:
            raise RedxError(
                f"The statistics of {name!r} are of another feature map ({own.map} instead of {first.map}); "
                "let their owner compute them with this run's kit."
            )
        if unknown := [label for label in own.classes if label not in places]:
            raise RedxError(f"The statistics of {name!r} have the class {unknown[0]!r:.100}, which is not known here.")
        columns = torch.tensor([places[label] for label in own.classes])
        upper += own.upper
        moments.index_add_(1, columns, own.moments.double())
        counts.index_add_(0, columns, own.counts)
    return Statistics(first.map, tuple(classes), upper, moments, counts)
