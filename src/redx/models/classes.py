"""Classes that experts bring along: labels that the base has never seen.

The classes of a composed model are those of the base, followed by the new classes of its experts in natural order. On
every new class the base has a floor, below all of its own logits:

    base_new(x) = min_c base_c(x) - GAP

The network of an expert has one more output for each of its own new classes; on new classes of other experts its
residual is zero. So `base + Σ_k w_k residual_k` stays affine in the weights, and certificates and risk control need not
know which columns are new.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from redx.errors import RedxError
from redx.io.files import natural_order
from redx.models.base import Base

GAP = 1.0  # how far the floor lies below the lowest logit


class ExtendedBase(Base):
    """A base that has further outputs, all at the floor, for classes that it does not know.

    Parameters
    ----------
    base
        The base; its tensors are not copied.
    new
        Number of these outputs.

    Examples
    --------
    >>> from redx.models.backbones.base import IdentityEncoder
    >>> base = Base(IdentityEncoder(), torch.eye(2), torch.zeros(2), torch.zeros(2), torch.ones(2))
    >>> extend_base(base, 1).classify(torch.tensor([[3.0, 5.0]]))
    tensor([[3., 5., 2.]])
    """

    def __init__(self, base: Base, new: int) -> None:
        super().__init__(base.encoder, base.weight, base.bias, base.mean, base.scale)
        self.new = new

    @property
    def outputs(self) -> int:
        """The number of classes, including the new ones."""
        return self.known + self.new

    def on_features(self, device: str | torch.device = "cpu") -> ExtendedBase:
        """Return the part of this base that reads features, on a device, with the same further outputs."""
        return ExtendedBase(super().on_features(device), self.new)

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits of standardised features, (..., E) to (..., C): its own classes, then the floor."""
        return add_floor(super().classify(h), self.new)


def extend_base(base: Base, new: int) -> Base:
    """Return a base with this many further outputs at the floor; the base itself where there are none."""
    if not new:
        return base
    return ExtendedBase(base, new)


def add_floor(logits: Tensor, new: int) -> Tensor:
    """Return logits, (..., C), with columns for new classes behind them, all `GAP` below the lowest logit.

    Examples
    --------
    >>> add_floor(torch.tensor([[0.0, 2.0]]), 2)
    tensor([[ 0.,  2., -1., -1.]])
    """
    if not new:
        return logits
    floor = logits.amin(-1, keepdim=True) - GAP
    return torch.cat([logits, floor.expand(*logits.shape[:-1], new)], -1)


def union_of_new_classes(experts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the new classes of several experts in the one order of their columns, whatever the order of adding."""
    return tuple(sorted({label for labels in experts for label in labels}, key=natural_order))


def place_columns(values: Tensor, known: int, own: Sequence[str], union: Sequence[str], residual: bool) -> Tensor:
    """Return the outputs of experts in the columns of a composed model.

    Parameters
    ----------
    values
        Outputs, (..., C + M): the C classes of the base, then the M new classes that each of these experts brings.
    known
        The number C of classes of the base.
    own
        These M new classes.
    union
        The new classes of all experts, in the order of the model.
    residual
        Whether the outputs are a residual, which is zero on new classes of others; the logits of a standalone head
        are at their own floor there.

    Returns
    -------
    Tensor
        Outputs of shape (..., C + the number of all new classes).
    """
    if not union:
        return values
    start = values[..., :known]
    empty = start.new_zeros(*start.shape[:-1], len(union))
    placed = torch.cat([start, empty], -1) if residual else add_floor(start, len(union))
    if own:
        placed[..., [known + union.index(label) for label in own]] = values[..., known:]
    return placed


def check_new_classes(name: str, labels: Sequence[str], base: Sequence[str], others: Iterable[str]) -> None:
    """Refuse new classes that could be mistaken for another class.

    Parameters
    ----------
    name
        Name of the expert, for the message.
    labels
        The new classes that it brings.
    base
        The classes of the base.
    others
        New classes of other experts; the very same label may be brought by several experts.

    Raises
    ------
    RedxError
        Where a label is empty, is known to the base, or differs from another one only in case or white space.
    """
    if labels and not base:
        raise RedxError(f"Expert {name!r} brings classes, but this model answers with numbers and has none.")
    taken = {_alike(label): label for label in (*base, *others)}
    for label in labels:
        same = taken.get(_alike(label))
        if not _alike(label):
            raise RedxError(f"Expert {name!r} brings a class without a name; give every example a label.")
        if label in base:
            raise RedxError(f"Expert {name!r} brings the class {label!r:.100}, which the base knows; train it anew.")
        if same is not None and same != label:
            raise RedxError(
                f"Expert {name!r} brings the class {label!r:.100}, which differs from {same!r:.100} only in case or "
                "white space; use one spelling."
            )
        taken[_alike(label)] = label


def _alike(label: str) -> str:
    """Return what labels have in common that people take for the same one."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())
