"""What flows through the house: the data of a task, and `Parts`, the waist between training and everything after it.

Axis letters, fixed once and for all: N examples, D features, K experts, C classes, R bottleneck rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from redx.errors import RedxError

if TYPE_CHECKING:
    from torch import Tensor


CHUNK = 2**24  # numbers of N·K·C handled at once: 64 MB in float32


@dataclass(frozen=True)
class Parts:
    """What the trained modules said about N examples: all that composition, noise and certificates need.

    With C = 1 the task is a regression in units of its answer: a prediction is the output rounded.
    """

    base: Tensor  # (N, C)    logits of the base
    residuals: Tensor  # (N, K, C) what each expert adds, or its own logits for a standalone head
    gates: Tensor  # (N, K)    router logits
    labels: Tensor  # (N,)
    domains: Tensor  # (N,)

    def __post_init__(self) -> None:
        wanted = {"base": 2, "residuals": 3, "gates": 2, "labels": 1, "domains": 1}
        for name, axes in wanted.items():
            tensor = getattr(self, name)
            if tensor.ndim != axes:
                raise RedxError(f"Parts.{name} has {tensor.ndim} axes, not {axes}; see the shapes in redx.Parts.")
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise RedxError(f"Parts.{name} contains NaN or infinity; retrain the module it came from.")
        examples, experts, classes = self.residuals.shape
        shapes = {
            "base": (examples, classes),
            "gates": (examples, experts),
            "labels": (examples,),
            "domains": (examples,),
        }
        for name, shape in shapes.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise RedxError(
                    f"Parts.{name} has shape {found}, but residuals of shape {tuple(self.residuals.shape)} "
                    f"need {shape}; all five tensors must describe the same examples."
                )

    def __len__(self) -> int:
        return self.base.shape[0]

    @property
    def experts(self) -> int:
        return self.residuals.shape[1]

    def only(self, rows: slice | Tensor) -> Parts:
        """The same record for some of the examples."""
        return Parts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def keep(self, experts: list[int]) -> Parts:
        """The same record with only these experts, in this order."""
        return replace(self, residuals=self.residuals[:, experts], gates=self.gates[:, experts])

    def chunks(self, numbers: int = CHUNK) -> Iterator[tuple[slice, Parts]]:
        """The record in slices of at most `numbers` values of N·K·C each, so that memory stays bounded."""
        _, experts, classes = self.residuals.shape
        step = max(1, numbers // max(1, experts * classes))
        for start in range(0, len(self), step):
            rows = slice(start, start + step)
            yield rows, self.only(rows)


def predicted_classes(scores: Tensor) -> Tensor:
    """What is predicted: the class of the highest score, or for a regression (C = 1) the output rounded."""
    return scores.argmax(-1) if scores.shape[-1] > 1 else scores[..., 0].round().long()
