"""Statistics of owners' examples, whose sum gives the ridge head on all data pooled without any data leaving an owner.

With a fixed feature map φ every owner k computes once, from its own examples alone,

    G_k = Σ φ(x) φ(x)ᵀ  (M, M)        c_k = Σ φ(x) onehot(y)ᵀ  (M, C_k)        n_k = examples by class  (C_k,)

and the head `φ(x)ᵀ (Σ_k G_k + λ I)⁻¹ Σ_k c_k` is exactly the ridge regression to one-hot labels on the union of the
examples. Leaving out an owner is leaving out a term. Sums are taken in double precision in the order of the owners'
names, so they do not depend on who came first. (Known as analytic federated learning.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from redx.errors import RedxError
from redx.seeding import generator

ROWS = 4096  # examples whose random features are in memory at once
PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # λ in units of the mean diagonal entry of Σ G
TEMPERATURES = tuple(torch.logspace(-1, 3, 81).tolist())  # factors on the ridge's outputs, to make logits of them
LARGEST = 8192  # random features of a file from a stranger


@dataclass(frozen=True)
class FeatureMap:
    """The fixed map φ from standardised features, (N, E), to (N, M).

    Attributes
    ----------
    width
        The number E of features.
    size
        The number of random features `relu(h P)`, P normal with variance 1/E; 0: the features themselves and a one.
    seed
        Decides P.

    Examples
    --------
    >>> FeatureMap(width=3, size=5)(torch.zeros(2, 3)).shape, FeatureMap(width=3, size=0)(torch.zeros(2, 3)).shape
    (torch.Size([2, 5]), torch.Size([2, 4]))
    """

    width: int
    size: int
    seed: int = 0

    @property
    def outputs(self) -> int:
        """M, the number of outputs."""
        return self.size or self.width + 1

    def projection(self) -> Tensor:
        """Return P, (E, M), drawn anew from the seed; empty without random features."""
        draw = generator(self.seed, "feature map", self.size)
        return torch.randn(self.width, self.size, generator=draw) * self.width**-0.5

    def __call__(self, h: Tensor, projection: Tensor | None = None) -> Tensor:
        """Return φ(h), (N, E) to (N, M); give the projection where the map is applied often."""
        if not self.size:
            return torch.cat([h, h.new_ones(len(h), 1)], -1)
        drawn = self.projection() if projection is None else projection
        return torch.relu(h @ drawn.to(h.device, h.dtype))


@dataclass(frozen=True)
class Statistics:
    """What one owner gives of its examples: second moments of φ, its sums by class, and counts.

    Attributes
    ----------
    map
        The feature map.
    classes
        The classes of the columns, C_k of them.
    gram
        G, (M, M).
    moments
        c, (M, C_k).
    counts
        Examples by class, (C_k,).
    """

    map: FeatureMap
    classes: tuple[str, ...]
    gram: Tensor
    moments: Tensor
    counts: Tensor

    @property
    def examples(self) -> int:
        """The number of examples that were summed."""
        return int(self.counts.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return what is saved: the upper triangle of G and c in single precision, and the counts."""
        rows, columns = torch.triu_indices(len(self.gram), len(self.gram))
        return {
            "gram": self.gram[rows, columns].float(),
            "moments": self.moments.float(),
            "counts": self.counts.long(),
        }

    def describe(self) -> dict[str, Any]:
        """Return what is saved beside the tensors."""
        return {"width": self.map.width, "size": self.map.size, "seed": self.map.seed, "classes": list(self.classes)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Statistics:
        """Return statistics that were saved, after checking that they can be some.

        Raises
        ------
        RedxError
            Where tensors are missing, have other shapes or types, are not finite, or cannot be sums of examples.
        """
        features = FeatureMap(int(about["width"]), int(about["size"]), int(about["seed"]))
        classes = tuple(map(str, about["classes"]))
        size = features.outputs
        if not 0 < features.width <= 2**16 or not 0 <= features.size <= LARGEST or size > LARGEST:
            raise RedxError(f"The statistics have {size} features; at most {LARGEST} are read.")
        if len(set(classes)) < len(classes):
            raise RedxError("The statistics name a class twice; let their owner compute them anew.")
        shapes = {"gram": (size * (size + 1) // 2,), "moments": (size, len(classes)), "counts": (len(classes),)}
        for name, shape in shapes.items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                raise RedxError(f"The tensor {name!r} of the statistics has not the shape {shape}; compute them anew.")
        gram, moments = tensors["gram"].double(), tensors["moments"].double()
        counts = tensors["counts"]
        if counts.dtype != torch.int64 or not bool((counts >= 0).all()) or not int(counts.sum()):
            raise RedxError("The statistics count no examples; let their owner compute them anew.")
        if not bool(gram.isfinite().all() and moments.isfinite().all()):
            raise RedxError("The statistics hold NaN or infinity; let their owner compute them anew.")
        rows, columns = torch.triu_indices(size, size)
        whole = torch.zeros(size, size, dtype=torch.float64)
        whole[rows, columns] = gram
        whole[columns, rows] = gram
        found = Statistics(features, classes, whole, moments, counts)
        found.check_possible()
        return found

    def check_possible(self) -> None:
        """Refuse sums that no examples have: G must be positive semidefinite, and c within what G and n allow.

        By the inequality of Cauchy and Schwarz `c_jc² ≤ G_jj n_c`.
        """
        diagonal = self.gram.diagonal()
        slack = 1e-5 * float(diagonal.clamp_min(0).mean()) + 1e-12
        allowed = diagonal.clamp_min(0)[:, None] * self.counts.double()
        if bool((diagonal < 0).any()) or bool((self.moments.square() > allowed * (1 + 1e-4) + slack).any()):
            raise RedxError("The statistics are no sums of examples (too large for their counts); compute them anew.")
        shifted = self.gram + slack * torch.eye(len(self.gram), dtype=torch.float64)
        if int(torch.linalg.cholesky_ex(shifted).info):
            raise RedxError("The statistics are no sums of examples (not positive semidefinite); compute them anew.")


def collect(map: FeatureMap, h: Tensor, labels: Tensor, classes: Sequence[str]) -> Statistics:
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
    projection = map.projection()
    gram = torch.zeros(map.outputs, map.outputs, dtype=torch.float64)
    moments = torch.zeros(map.outputs, len(present), dtype=torch.float64)
    for rows, owned in zip(h.split(ROWS), columns.split(ROWS), strict=True):
        features = map(rows, projection).double()  # (B, M)
        gram += features.T @ features
        moments.index_add_(1, owned, features.T)
    names = tuple(str(classes[label]) for label in present.tolist())
    return Statistics(map, names, gram, moments, torch.bincount(columns, minlength=len(present)))


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
    gram = torch.zeros(size, size, dtype=torch.float64)
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
        gram += own.gram.double()
        moments.index_add_(1, columns, own.moments.double())
        counts.index_add_(0, columns, own.counts)
    return Statistics(first.map, tuple(classes), gram, moments, counts)


def solve(total: Statistics, penalty: float) -> Tensor:
    """Return the weights of the ridge head, (M, C), in double precision.

    Parameters
    ----------
    total
        The sum over owners.
    penalty
        λ in units of the mean diagonal entry of G.
    """
    shifted = total.gram.clone()
    shifted.diagonal().add_(max(penalty * float(total.gram.diagonal().mean()), 1e-12))
    return torch.cholesky_solve(total.moments, torch.linalg.cholesky(shifted))


@dataclass(frozen=True)
class RidgeHead:
    """A head that statistics give: `logits = temperature · φ(h)ᵀ weight`.

    Attributes
    ----------
    map
        The feature map.
    weight
        (M, C), the temperature included.
    penalty, temperature
        What was chosen on held-out examples.
    """

    map: FeatureMap
    weight: Tensor
    penalty: float
    temperature: float

    def __call__(self, h: Tensor, projection: Tensor | None = None) -> Tensor:
        """Return the logits of standardised features: (N, E) to (N, C)."""
        return self.map(h, projection) @ self.weight.to(h.device, h.dtype)


def fit_head(total: Statistics, held: Tensor, labels: Tensor, penalties: Sequence[float] = PENALTIES) -> RidgeHead:
    """Return the head with the penalty and the temperature that suit held-out examples best.

    Parameters
    ----------
    total
        The sum over owners.
    held, labels
        Held-out features, (N, E), and labels, (N,), that are for choices; without any, the middle penalty is taken and
        logits of a right answer are about 10.
    penalties
        Values of λ; the largest of those with the best accuracy is taken.
    """
    projection = total.map.projection()
    features = total.map(held, projection).double()
    if not len(held):
        penalty = penalties[len(penalties) // 2]
        return RidgeHead(total.map, 10 * solve(total, penalty), penalty, 10.0)
    found: list[tuple[float, float, Tensor]] = []
    for penalty in penalties:
        weight = solve(total, penalty)
        accuracy = float(((features @ weight).argmax(-1) == labels).double().mean())
        found.append((accuracy, penalty, weight))
    _, penalty, weight = max(found, key=lambda one: (one[0], one[1]))
    outputs = features @ weight
    temperature = min(TEMPERATURES, key=lambda factor: float(cross_entropy(factor * outputs, labels)))
    return RidgeHead(total.map, temperature * weight, penalty, temperature)
