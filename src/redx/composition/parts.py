"""The `Parts` record: everything that the trained modules output for a set of examples.

Rules, noise, certificates and metrics are functions of this record and need no trained model. A record that does not
fit into memory is given in pieces: functions that take a `Record` read one piece after the other and return what they
return for the whole. All modules of redx use the same letters for axes: N examples, D features, K experts, C classes,
R rank of a low-rank expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from redx.errors import RedxError

LARGEST_ANSWER = 2.0**62  # of a regression: larger outputs count as this one
CHUNK = 2**24  # values of N·K·C that are processed at once: 64 MB in float32
UNKNOWN = -1  # the label of an example whose class is not known


class Cutoffs(NamedTuple):
    """Cut-offs on the experts' confidences: for routers on the simplex, and in the box [0, 1]^K.

    Attributes
    ----------
    simplex
        The cut-off of rules whose weights sum to at most one, such as `red`.
    box
        The cut-off of rules whose weights are free in [0, 1], such as `sum`.

    Notes
    -----
    Each is one number for all examples, or one for each example, (N,), where the cut-off depends on the domain that the
    base's answer names.
    """

    simplex: float | Tensor
    box: float | Tensor

    def only(self, rows: slice | Tensor) -> Cutoffs:
        """Return the cut-offs of some of the examples."""
        return Cutoffs(*(value[rows] if isinstance(value, Tensor) else value for value in self))

    @staticmethod
    def concatenate(pieces: Sequence[Cutoffs]) -> Cutoffs:
        """Return the cut-offs of consecutive pieces of a record as one."""
        joined = zip(*pieces, strict=True)
        return Cutoffs(*(torch.cat(values) if isinstance(values[0], Tensor) else values[0] for values in joined))


@dataclass(frozen=True)
class Losses:
    """Losses over all classes, for a record that holds a shortlist of them, such as that of a vocabulary.

    Attributes
    ----------
    base
        Loss of the base, (N,).
    experts
        Loss where one expert has all the weight and no cut-off applies, (N, K).
    mixed
        Loss of rules that mix several experts, (N,) by the name of the rule.
    cutoff
        The cut-off that `mixed` was computed with; None: without one.
    """

    base: Tensor  # (N,)
    experts: Tensor  # (N, K)
    mixed: dict[str, Tensor]  # (N,) by rule
    cutoff: float | None = None

    def only(self, rows: slice | Tensor) -> Losses:
        """Return the losses of some of the examples."""
        mixed = {name: values[rows] for name, values in self.mixed.items()}
        return Losses(self.base[rows], self.experts[rows], mixed, self.cutoff)

    def keep(self, experts: list[int]) -> Losses:
        """Return the losses of some of the experts; those of mixtures of all of them are left out."""
        return Losses(self.base, self.experts[:, experts], {}, self.cutoff)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, to be saved."""
        cutoff = torch.tensor(math.nan if self.cutoff is None else self.cutoff, dtype=torch.float64)
        named = {"base": self.base, "experts": self.experts, "cutoff": cutoff}
        return named | {f"mixed.{name}": values for name, values in self.mixed.items()}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> Losses:
        """Return what `tensors()` described."""
        mixed = {name.removeprefix("mixed."): values for name, values in tensors.items() if name.startswith("mixed.")}
        cutoff = float(tensors["cutoff"])
        return Losses(tensors["base"], tensors["experts"], mixed, None if math.isnan(cutoff) else cutoff)

    @staticmethod
    def concatenate(pieces: Sequence[Losses]) -> Losses:
        """Return the losses of consecutive pieces of a record as one."""
        mixed = {name: torch.cat([piece.mixed[name] for piece in pieces]) for name in pieces[0].mixed}
        base, experts = (torch.cat([getattr(piece, name) for piece in pieces]) for name in ("base", "experts"))
        return Losses(base, experts, mixed, pieces[0].cutoff)


@dataclass(frozen=True)
class Parts:
    """The outputs of base, experts and router for N examples, with labels and domains where they are known.

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
        True classes as integers, (N,), -1 where the class is unknown; for a regression the true answers. None where
        nothing is known. Only figures of accuracy and harm need labels.
    domains
        Index of the true domain, (N,). Index k is the domain of expert k; other indices are domains without an expert.
        None where nothing is known.
    confidences
        How sure each expert is of its own answer, (N, K); None where nothing depends on it.
    cutoffs
        An expert contributes only where its confidence exceeds the cut-off of the rule; None: everywhere.
    groups
        Which exchangeable unit an example belongs to, such as the document of a token, (N,) in int64; None: every
        example is a unit of its own.
    named
        The domain that the base names for each example, (N,), which chooses its cut-off where the risk is controlled by
        domain and classes belong to several domains; None where the class of the base's answer names the domain.
    losses
        None where the record holds all classes. Otherwise it holds, for every example, a shortlist: classes that some
        weights on the simplex could put above the label, so that it is exact which answers are right, under which
        weights, and where the label is lost. Its columns are no classes, and losses over all of them stand here.

    Raises
    ------
    RedxError
        If shapes or types do not agree, or if a tensor contains NaN or infinity.

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
    labels: Tensor | None = None  # (N,)
    domains: Tensor | None = None  # (N,)
    confidences: Tensor | None = None  # (N, K)
    cutoffs: Cutoffs | None = None
    groups: Tensor | None = None  # (N,)
    losses: Losses | None = None
    named: Tensor | None = None  # (N,)

    def __post_init__(self) -> None:
        axes = {"base": 2, "residuals": 3, "gates": 2, "labels": 1, "domains": 1, "groups": 1, "named": 1}
        for name, expected in axes.items():
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if tensor.ndim != expected:
                raise RedxError(f"Parts.{name} has {tensor.ndim} axes, not {expected}; see the shapes in redx.Parts.")
            if tensor.is_floating_point() and not _is_finite(tensor):
                raise RedxError(f"Parts.{name} contains NaN or infinity; retrain the module that computed it.")
            if expected == 1 and (tensor.is_floating_point() or tensor.dtype == torch.bool):
                raise RedxError(f"Parts.{name} holds {tensor.dtype}, not whole numbers; convert it with .long().")
            if expected > 1 and not tensor.is_floating_point():
                raise RedxError(f"Parts.{name} holds {tensor.dtype}, not fractions; convert it with .float().")
        types = {name: str(getattr(self, name).dtype).removeprefix("torch.") for name in ("base", "residuals", "gates")}
        if len(set(types.values())) > 1:
            held = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
            raise RedxError(
                f"Parts hold numbers of different types ({held}); convert all of them to one, as with .to()."
            )
        examples, experts, classes = self.residuals.shape
        shapes = {"base": (examples, classes), "gates": (examples, experts)}
        shapes |= dict.fromkeys(("labels", "domains", "groups", "named"), (examples,))
        for name, expected in shapes.items():
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != expected:
                raise RedxError(
                    f"Parts.{name} has shape {tuple(tensor.shape)}, but residuals of shape "
                    f"{tuple(self.residuals.shape)} need {expected}; all tensors must describe the same examples."
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
        for value in self.cutoffs or ():
            if isinstance(value, Tensor) and (tuple(value.shape) != (len(self),) or _has_nan(value)):
                raise RedxError(f"Cut-offs are one number, or one for each of the {len(self)} examples; give those.")

    def __len__(self) -> int:
        return self.base.shape[0]

    @property
    def experts(self) -> int:
        """The number of experts K."""
        return self.residuals.shape[1]

    @property
    def known(self) -> Tensor:
        """Which examples have a label, (N,): none without labels; a regression's labels are all known."""
        if self.labels is None:
            return torch.zeros(len(self), dtype=torch.bool)
        return torch.ones(len(self), dtype=torch.bool) if self.base.shape[1] == 1 else self.labels != UNKNOWN

    def labelled(self) -> Parts:
        """Return the record of the examples whose labels are known; the others are neither right nor wrong."""
        known = self.known
        return self if bool(known.all()) else self.only(known)

    def true_labels(self) -> Tensor:
        """Return the labels, (N,), where accuracy or harm depends on them.

        Raises
        ------
        RedxError
            If there are none, or if some of them are unknown: those are neither right nor wrong.
        """
        if self.labels is None:
            raise RedxError("These parts hold no labels, so nothing is right or wrong; give Parts(labels=…).")
        if not bool((known := self.known).all()):
            raise RedxError(
                f"The labels of {int((~known).sum())} of {len(self)} examples are unknown (-1), so they are neither "
                "right nor wrong; leave these out with parts.only(parts.known)."
            )
        return self.labels

    def true_domains(self) -> Tensor:
        """Return the domains, (N,), or raise `RedxError` where the record holds none."""
        if self.domains is None:
            raise RedxError("These parts hold no domains; give Parts(domains=…), or choose a rule that needs none.")
        return self.domains

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, of those that there are, without losses."""
        others = ("cutoffs", "losses")
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in others}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @staticmethod
    def concatenate(pieces: Sequence[Parts]) -> Parts:
        """Return consecutive pieces of a record as one; all of them have the same experts and cut-offs."""
        tensors = [piece.tensors() for piece in pieces]
        if any(piece.keys() != tensors[0].keys() for piece in tensors):
            raise RedxError("Some pieces of the record hold labels, domains, confidences or groups and others do not.")
        joined = {name: torch.cat([piece[name] for piece in tensors]) for name in tensors[0]}
        losses = [piece.losses for piece in pieces if piece.losses is not None]
        cutoffs = [piece.cutoffs for piece in pieces if piece.cutoffs is not None]
        return replace(
            pieces[0],
            **joined,
            losses=Losses.concatenate(losses) if losses else None,
            cutoffs=Cutoffs.concatenate(cutoffs) if len(cutoffs) == len(pieces) else None,
        )

    def active(self, region: str) -> Tensor:
        """Return where an expert's confidence exceeds the cut-off of a region, (N, K); everywhere without cut-offs."""
        if self.cutoffs is None or self.confidences is None:
            return torch.ones_like(self.gates, dtype=torch.bool)
        cutoff = getattr(self.cutoffs, region)
        return self.confidences > (cutoff[:, None] if isinstance(cutoff, Tensor) else cutoff)

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

        Raises
        ------
        RedxError
            If the record holds a shortlist of the classes and the weights are free: others could win there.
        """
        if region == "box" and self.losses is not None:
            raise RedxError(
                "These parts hold a shortlist of the classes, which is exact only for weights that sum to at most one; "
                "choose a rule such as red."
            )
        if self.cutoffs is None or self.confidences is None:
            return self
        return self._derived(residuals=self.residuals * self.active(region)[..., None], cutoffs=None)

    def with_confidences(self, confidences: Tensor, cutoffs: Cutoffs | None) -> Parts:
        """Return the record with other confidences, (N, K), and cut-offs; only these are checked."""
        parts = self._derived(confidences=confidences, cutoffs=cutoffs)
        parts._check_confidences()
        return parts

    def with_gates(self, gates: Tensor) -> Parts:
        """Return the record with other gates, (N, K), which are not checked."""
        return self._derived(gates=gates)

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
        losses = None if self.losses is None else self.losses.only(rows)
        cutoffs = None if self.cutoffs is None else self.cutoffs.only(rows)
        tensors = {name: tensor[rows] for name, tensor in self.tensors().items()}
        return self._derived(**tensors, losses=losses, cutoffs=cutoffs)

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
        losses = None if self.losses is None else self.losses.keep(experts)
        kept = {"residuals": self.residuals[:, experts], "gates": self.gates[:, experts]}
        return self._derived(**kept, confidences=confidences, losses=losses)

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


class Pieces:
    """A record in consecutive pieces, which can be read as often as it is needed.

    Parameters
    ----------
    source
        An iterable of `Parts` that can be read again, such as a list, or a function that returns an iterator.
    changes
        Applied to every piece that is read, in this order.

    Raises
    ------
    RedxError
        If the source can be read only once, or if its pieces are no `Parts` of the same experts.

    Examples
    --------
    >>> import torch
    >>> parts = Parts(torch.eye(3), torch.zeros(3, 2, 3), torch.zeros(3, 2))
    >>> stream = Pieces(lambda: (parts.only(slice(row, row + 1)) for row in range(3)))
    >>> [len(piece) for piece in stream]
    [1, 1, 1]
    """

    def __init__(
        self,
        source: Iterable[Parts] | Callable[[], Iterable[Parts]],
        changes: tuple[Callable[[Parts], Parts], ...] = (),
    ) -> None:
        if isinstance(source, Iterator):
            raise RedxError("A record in pieces is read several times; give a list, or a function that returns them.")
        if not callable(source) and not isinstance(source, Iterable):
            raise RedxError(f"A record is redx.Parts, or pieces of these, not {type(source).__name__}; see redx.Parts.")
        self.source, self.changes = source, changes

    def __iter__(self) -> Iterator[Parts]:
        experts = None
        for piece in self.source() if callable(self.source) else self.source:
            if not isinstance(piece, Parts):
                raise RedxError(f"A piece of the record is {type(piece).__name__}, not redx.Parts; give those.")
            if experts is not None and piece.experts != experts:
                raise RedxError(
                    f"The pieces of the record have {experts} and {piece.experts} experts; give one model's."
                )
            experts = piece.experts
            for change in self.changes:
                piece = change(piece)
            yield piece

    def map(self, change: Callable[[Parts], Parts]) -> Pieces:
        """Return the record whose pieces are changed as they are read."""
        return Pieces(self.source, (*self.changes, change))

    def rows(self) -> Iterator[tuple[slice, Parts]]:
        """Yield every piece with its rows in the whole record."""
        start = 0
        for piece in self:
            yield slice(start, start + len(piece)), piece
            start += len(piece)


Record: TypeAlias = Parts | Pieces | Iterable[Parts] | Callable[[], Iterable[Parts]]
Held = TypeVar("Held", Parts, Pieces)  # a record as a whole, or in pieces


def in_pieces(record: Record) -> Pieces:
    """Return any record as pieces: `Parts` are one piece."""
    if isinstance(record, Pieces):
        return record
    return Pieces((record,) if isinstance(record, Parts) else record)


def change(record: Held, function: Callable[[Parts], Parts]) -> Held:
    """Return a record with a function applied to it, at once or to every piece that is read."""
    return function(record) if isinstance(record, Parts) else record.map(function)


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite; a finite sum shows it in one pass, since NaN and infinity stay in a sum."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def _has_nan(tensor: Tensor) -> bool:
    """Return whether a value is NaN; a sum that is a number rules it out in one pass."""
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
