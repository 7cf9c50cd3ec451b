"""The `Parts` record: everything that the trained modules output for a set of examples.

Rules, noise, certificates and metrics are functions of this record and need no trained model. All modules of redx use
the same letters for axes: N examples, D features, K experts, C classes, R rank of a low-rank expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from redx.errors import RedxError

LARGEST_ANSWER = 2.0**62  # of a regression: larger outputs count as this one
CHUNK = 2**24  # values of N·K·C that are processed at once: 64 MB in float32


class Cutoffs(NamedTuple):
    """Cut-offs on the experts' confidences: for routers on the simplex, and in the box [0, 1]^K.

    Attributes
    ----------
    simplex
        The cut-off of rules whose weights sum to at most one, such as `red`.
    box
        The cut-off of rules whose weights are free in [0, 1], such as `sum`.
    """

    simplex: float
    box: float


@dataclass(frozen=True)
class Parts:
    """The outputs of base, experts and router for N examples, with labels and domains.

    With C = 1 the task is a regression, and the prediction is the output rounded to the nearest integer.

    Attributes
    ----------
    base
        Logits of the base, (N, C).
    residuals
        Outputs of the experts, (N, K, C): residuals, or for standalone heads their logits.
    gates
        Logits of the router, (N, K).
    labels
        True classes as integers, (N,); for a regression the true answers.
    domains
        Index of the true domain, (N,). Index k is the domain of expert k; other indices are domains without an expert.
    confidences
        How sure each expert is of its own answer, (N, K); None where nothing depends on it.
    cutoffs
        An expert contributes only where its confidence exceeds the cut-off of the rule; None: everywhere.

    Raises
    ------
    RedxError
        If the shapes do not agree, or if a tensor contains NaN or infinity.

    Examples
    --------
    >>> import torch
    >>> parts = Parts(
    ...     base=torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
    ...     residuals=torch.zeros(2, 3, 2),
    ...     gates=torch.zeros(2, 3),
    ...     labels=torch.tensor([0, 1]),
    ...     domains=torch.tensor([0, 2]),
    ... )
    >>> len(parts), parts.experts
    (2, 3)
    """

    base: Tensor  # (N, C)
    residuals: Tensor  # (N, K, C)
    gates: Tensor  # (N, K)
    labels: Tensor  # (N,)
    domains: Tensor  # (N,)
    confidences: Tensor | None = None  # (N, K)
    cutoffs: Cutoffs | None = None

    def __post_init__(self) -> None:
        axes = {"base": 2, "residuals": 3, "gates": 2, "labels": 1, "domains": 1}
        for name, expected in axes.items():
            tensor = getattr(self, name)
            if tensor.ndim != expected:
                raise RedxError(f"Parts.{name} has {tensor.ndim} axes, not {expected}; see the shapes in redx.Parts.")
            if tensor.is_floating_point() and not _is_finite(tensor):
                raise RedxError(f"Parts.{name} contains NaN or infinity; retrain the module that computed it.")
        examples, experts, classes = self.residuals.shape
        shapes = {
            "base": (examples, classes),
            "gates": (examples, experts),
            "labels": (examples,),
            "domains": (examples,),
        }
        for name, expected in shapes.items():
            actual = tuple(getattr(self, name).shape)
            if actual != expected:
                raise RedxError(
                    f"Parts.{name} has shape {actual}, but residuals of shape {tuple(self.residuals.shape)} "
                    f"need {expected}; all five tensors must describe the same examples."
                )
        self._check_confidences()

    def _check_confidences(self) -> None:
        if self.confidences is not None:
            if self.confidences.shape != self.gates.shape or _has_nan(self.confidences):
                raise RedxError(
                    f"Parts.confidences must be numbers of shape {tuple(self.gates.shape)}, like the gates."
                )
        elif self.cutoffs is not None:
            raise RedxError("Parts with cut-offs need confidences to compare with them; give both or neither.")

    def __len__(self) -> int:
        return self.base.shape[0]

    @property
    def experts(self) -> int:
        """The number of experts K."""
        return self.residuals.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name; confidences only where there are any."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "cutoffs"}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @staticmethod
    def concatenate(pieces: Sequence[Parts]) -> Parts:
        """Return consecutive pieces of a record as one; all of them have the same experts and cut-offs."""
        tensors = [piece.tensors() for piece in pieces]
        joined = {name: torch.cat([piece[name] for piece in tensors]) for name in tensors[0]}
        return replace(pieces[0], **joined)

    def above_cutoff(self, region: str) -> Parts:
        """Return the record with residuals of zero where an expert's confidence does not exceed the cut-off.

        Parameters
        ----------
        region
            `simplex` or `box`: which of the two cut-offs applies.

        Returns
        -------
        Parts
            A record without cut-offs that composes in the same way; the record itself where it has none.
        """
        if self.cutoffs is None or self.confidences is None:
            return self
        active = self.confidences > getattr(self.cutoffs, region)  # (N, K)
        return self._derived(residuals=self.residuals * active[..., None], cutoffs=None)

    def with_confidences(self, confidences: Tensor, cutoffs: Cutoffs | None) -> Parts:
        """Return the record with other confidences, (N, K), and cut-offs; only these are checked."""
        parts = self._derived(confidences=confidences, cutoffs=cutoffs)
        parts._check_confidences()
        return parts

    def only(self, rows: slice | Tensor) -> Parts:
        """Return the record of some of the examples.

        Parameters
        ----------
        rows
            A slice, row indices of shape (M,), or a boolean mask of shape (N,).

        Returns
        -------
        Parts
            A record of the chosen rows, in the order of `rows`.
        """
        return self._derived(**{name: tensor[rows] for name, tensor in self.tensors().items()})

    def keep(self, experts: list[int]) -> Parts:
        """Return the record of some of the experts.

        Parameters
        ----------
        experts
            Indices of the experts to keep.

        Returns
        -------
        Parts
            A record of these experts, in the order of `experts`; `domains` is unchanged.
        """
        confidences = None if self.confidences is None else self.confidences[:, experts]
        return self._derived(
            residuals=self.residuals[:, experts], gates=self.gates[:, experts], confidences=confidences
        )

    def _derived(self, **changes: Any) -> Parts:
        """Return a record of values that were checked in this one, so that they are not checked again."""
        parts = object.__new__(Parts)
        for field in fields(self):
            object.__setattr__(parts, field.name, changes.get(field.name, getattr(self, field.name)))
        return parts

    def chunks(self, numbers: int = CHUNK) -> Iterator[tuple[slice, Parts]]:
        """Yield the record in consecutive pieces, so that intermediate results fit into memory.

        Parameters
        ----------
        numbers
            Largest number of values in the residuals of a piece; a piece has at least one example.

        Yields
        ------
        tuple of slice and Parts
            The rows of the piece, and the record of these rows.
        """
        _, experts, classes = self.residuals.shape
        step = max(1, numbers // max(1, experts * classes))
        if 0 < len(self) <= step:
            yield slice(0, len(self)), self
            return
        for start in range(0, len(self), step):
            rows = slice(start, start + step)
            yield rows, self.only(rows)


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: one pass where their sum is, since NaN and infinity carry over to a sum."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def _has_nan(tensor: Tensor) -> bool:
    """Return whether a value is NaN: one pass where the sum of all of them is a number."""
    return math.isnan(tensor.sum().item()) and bool(tensor.isnan().any())


def predicted_classes(scores: Tensor) -> Tensor:
    """Return the predictions that belong to scores.

    Parameters
    ----------
    scores
        Logits or probabilities of shape (..., C).

    Returns
    -------
    Tensor
        The class with the highest score, of shape (...); for a regression (C = 1) the output rounded to an integer.

    Examples
    --------
    >>> import torch
    >>> predicted_classes(torch.tensor([[0.1, 0.7, 0.2]]))
    tensor([1])
    >>> predicted_classes(torch.tensor([[41.8]]))
    tensor([42])
    """
    if scores.shape[-1] > 1:
        return scores.argmax(-1)
    return scores[..., 0].round().clamp(-LARGEST_ANSWER, LARGEST_ANSWER).long()
