"""The experts of a model by name: added, removed and replaced without touching one another.

Experts are kept in the natural order of their names, in whatever order they were added, so `base + Σ_k w_k residual_k`
is always the same sum, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.config import BankConfig, BankId, ModelConfig, OwnershipConfig
from redx.errors import RedxError
from redx.io.files import natural_order
from redx.models.banks import Bank, load_bank
from redx.models.base import Base
from redx.models.classes import check_new_classes, extend_base, place_columns, union_of_new_classes
from redx.models.contribution import Contribution, measure_contribution
from redx.models.expert import Expert
from redx.models.feature_map import FeatureMap
from redx.models.fingerprint import base_differences
from redx.models.ridge_head import RidgeHead, StatisticsPool
from redx.models.stack import Members, Owners, Stacks
from redx.models.statistics import Statistics

CLOSED_GATE = (
    -1e9
)  # the gate of an expert whose ownership score is minus infinity: its softmax weight is exactly zero beside any other


class ExpertLibrary:
    """The experts of a model; change them with `add`, `remove` and `replace`, or for a while with `changing`.

    Parameters
    ----------
    experts
        Experts by name.
    base
        The frozen base that all of them were trained on.
    banks
        Settings of the banks that every expert is part of.
    ownership
        Settings of the ownership scores.
    fingerprint
        Computes the fingerprint of the base, which experts from outside must match.
    classes
        The classes of the base; experts may bring others.
    pool
        Solves the base from the statistics of the experts' owners; None where the base is that of the shared examples.
    weight
        With a pool: the factor a of a residual `a · (f_k - B)`.

    Attributes
    ----------
    names
        The experts' names, in order.

    Examples
    --------
    >>> import redx
    >>> model = redx.load("runs/toy")  # doctest: +SKIP
    >>> removed = model.experts.remove("1-20")  # doctest: +SKIP
    >>> model.experts.add(removed)  # doctest: +SKIP
    '1-20'
    """

    def __init__(
        self,
        experts: dict[str, Expert],
        base: Base,
        banks: dict[BankId, BankConfig],
        ownership: OwnershipConfig,
        fingerprint: Callable[[], dict[str, Any]] = dict,
        classes: Sequence[str] = (),
        pool: StatisticsPool | None = None,
        weight: float = 1.0,
    ) -> None:
        self.pool, self.weight = pool, weight
        self._set(experts)
        self.classes = tuple(classes)
        self.base, self.banks, self.ownership = base, banks, ownership
        self._compute_fingerprint, self._fingerprint = fingerprint, None
        self._stacks = Stacks()

    def __len__(self) -> int:
        return len(self._experts)

    def __iter__(self) -> Iterator[Expert]:
        return iter(self._experts.values())

    def __contains__(self, name: str) -> bool:
        return name in self._experts

    def __getitem__(self, name: str) -> Expert:
        if name not in self._experts:
            raise RedxError(f"There is no expert {name!r}; choose from {', '.join(self.names)}.")
        return self._experts[name]

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The fingerprint of the base, computed once."""
        if self._fingerprint is None:
            self._fingerprint = self._compute_fingerprint()
        return self._fingerprint

    @property
    def new_classes(self) -> tuple[str, ...]:
        """The classes that the experts bring and the base does not know, in the order of their columns."""
        if self._new_classes is None:
            self._new_classes = union_of_new_classes(expert.new_classes for expert in self)
        return self._new_classes

    def owner_of(self, label: str) -> str | None:
        """Return the expert that brings a new class; None where several do."""
        owners = [expert.name for expert in self if label in expert.new_classes]
        return owners[0] if len(owners) == 1 else None

    @property
    def extended_base(self) -> Base:
        """The base with one output at the floor for every new class; the base itself where there is none."""
        return extend_base(self.base, len(self.new_classes)) if self.new_classes else self.base

    @property
    def head(self) -> RidgeHead | None:
        """The base that the owners' statistics give; None where the base is that of the shared examples."""
        if self._whole is not None:
            return self._whole.head
        if self.pool is not None and self._head is None:
            self._head = self.pool.head(_marks(self), self._statistics_of, (*self.classes, *self.new_classes))
        return self._head

    def contribution(self, name: str) -> Contribution | None:
        """Return what the statistics of an owner do to the base; None where it brings none, or nobody holds examples.

        The base with this owner is compared with the base without it, on the examples for choices, and where these are
        few also on shared ones that are predicted with themselves left out.

        Parameters
        ----------
        name
            The expert of this owner.
        """
        if self.pool is None or not self[name].statistics_mark:
            return None
        others = [expert for expert in self if expert.name != name]
        known = (*self.classes, *union_of_new_classes(expert.new_classes for expert in others))
        classes = (*self.classes, *self.new_classes)
        within, labels = self.pool.held_answers(_marks(self), self._statistics_of, classes)
        if not len(labels):
            return None
        without, _ = self.pool.held_answers(_marks(others), self._statistics_of, known)
        columns = torch.tensor([classes.index(label) for label in known])
        new = [place for place, label in enumerate(classes) if label not in known]
        return measure_contribution(within, columns[without], labels, new)

    def _statistics_of(self, name: str) -> Statistics:
        found = self[name].statistics()
        assert found is not None  # the pool asks only for those that experts name
        return found

    # --- what base and experts compute

    def base_logits(self, bank_id: BankId | None, h: Tensor) -> Tensor:
        """Return the logits of the base that a bank corrects, (N, E) to (N, C).

        Parameters
        ----------
        bank_id
            The bank; None for the base of the model.
        h
            Features of shape (N, E).
        """
        with torch.no_grad():
            head = None if bank_id is not None and self._on_shared(bank_id) else self.head
            return self.extended_base.classify(h) if head is None else head(h)

    def _on_shared(self, bank_id: BankId) -> bool:
        return bank_id in self.banks and self.banks[bank_id].on_shared

    def to_residuals(self, bank_id: BankId, outputs: Tensor, h: Tensor, base: Tensor) -> Tensor:
        """Return corrections of the shared examples' base as corrections of the base that the bank corrects.

        With statistics an expert's own logits are `f_k = b + r_k`, b the base of the shared examples that it was
        trained on, and its residual is `a · (f_k - B)`. So it stays valid whatever owners come or leave. On new classes
        of other experts its residual is zero; a is 1 for an expert with classes that no statistics count.

        Parameters
        ----------
        bank_id
            The bank; the outputs of standalone heads stay as they are.
        outputs
            What the experts correct the shared examples' base by, (N, K, C).
        h
            Features of the same examples, (N, E).
        base
            Logits of the base that the bank corrects, (N, C).
        """
        if self.pool is None or not bank_id.corrects_base or self._on_shared(bank_id):
            return outputs
        with torch.no_grad():
            shift = self.extended_base.classify(h) - base  # (N, C)
        residuals = outputs + shift[:, None]
        if not self.new_classes:
            return residuals if self.weight == 1 else self.weight * residuals
        head, known = self.head, self.base.known
        assert head is not None
        for own, columns in self._by_new_classes().items():
            of_others = [known + at for at, label in enumerate(self.new_classes) if label not in own]
            residuals[:, torch.tensor(columns)[:, None], torch.tensor(of_others, dtype=torch.long)] = 0
            # where the base knows nothing of a class, the expert's own answer counts in full
            alone = any(known + self.new_classes.index(label) in head.missing for label in own)
            residuals[:, columns] *= 1.0 if alone else self.weight
        return residuals

    def outputs(self, bank_id: BankId, h: Tensor) -> Tensor:
        """Return the outputs of every expert in a bank.

        Parameters
        ----------
        bank_id
            The bank to run.
        h
            Features of shape (N, E).

        Returns
        -------
        Tensor
            Residuals or logits of shape (N, K, C), C with the new classes.
        """
        corrected = self.pool is not None and bank_id.corrects_base
        return self.run(bank_id, h)[1] if corrected else self._raw_outputs(bank_id, h)

    def run(self, bank_id: BankId, h: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits of the base, (N, C), and what the experts of a bank give, (N, K, C).

        Parameters
        ----------
        bank_id, h
            As for `outputs`.
        first
            Columns of the experts that each example asks, (N, T); each expert then reads only the examples that ask it,
            and (N, T, C) are returned.
        """
        base = self.base_logits(bank_id, h)
        if first is None:
            return base, self.to_residuals(bank_id, self._raw_outputs(bank_id, h), h, base)
        if not len(h):
            return base, h.new_zeros(*first.shape, base.shape[1])
        if self.new_classes:  # then experts have outputs of several widths
            outputs = self.to_residuals(bank_id, self._raw_outputs(bank_id, h), h, base)
            return base, outputs.gather(1, first[..., None].expand(-1, -1, base.shape[1]))
        config = self.banks[bank_id]
        outputs = self._stacks.run(config.experts_of or bank_id, self._members(bank_id), h, first)
        return base, self.to_residuals(bank_id, outputs, h, base)

    def _raw_outputs(self, bank_id: BankId, h: Tensor) -> Tensor:
        """Return what the networks give: residuals are corrections of the shared examples' base, (N, K, C)."""
        new_classes, known, config = self.new_classes, self.base.known, self.banks[bank_id]
        name = config.experts_of or bank_id
        if not new_classes and len(self):  # all experts have outputs alike
            return self._stacks.run(name, self._members(bank_id), h)
        outputs = h.new_zeros(len(h), len(self), known + len(new_classes))
        for own, columns in self._by_new_classes().items():
            values = self._stacks.run(name, self._members(bank_id, columns), h)
            outputs[:, columns] = place_columns(values, known, own, new_classes, residual=bank_id.corrects_base)
        return outputs

    def ownership_scores(self, h: Tensor) -> Tensor:
        """Return every expert's ownership score, (N, E) to (N, K): the gates of the open-set router `keys`."""
        if not len(self):
            return h.new_zeros(len(h), 0)
        if self.new_classes:
            scores = h.new_zeros(len(h), len(self))
            for columns in self._by_new_classes().values():
                scores[:, columns] = self._stacks.ownership_scores(self._scorers(columns), h)
        else:
            scores = self._stacks.ownership_scores(self._scorers(), h)
        return scores.nan_to_num(posinf=-CLOSED_GATE, neginf=CLOSED_GATE)

    def own_classes(self) -> Tensor | None:
        """Return which classes, with the new ones, are each expert's own, (K, C); None where no score is by class."""
        if self._own is None:
            own = torch.zeros(len(self), self.base.known + len(self.new_classes), dtype=torch.bool)
            for labels, columns in self._by_new_classes().items():
                for column, scorer in zip(columns, self._scorers(columns).scorers, strict=True):
                    if scorer.classes is None:
                        return None
                    known = scorer.classes[0]
                    own[column] = place_columns(known, self.base.known, labels, self.new_classes, residual=True)
            self._own = own
        return self._own

    def _members(self, bank_id: BankId, columns: Sequence[int] | None = None) -> Members:
        """Return the experts in these columns, all by default, with their networks in a bank; looked up once."""
        key = bank_id, None if columns is None else tuple(columns)
        if key not in self._found:
            experts, config = self._in_columns(columns), self.banks[bank_id]
            self._found[key] = Members(experts, [expert.bank(bank_id, config, self.base) for expert in experts])
        return self._found[key]

    def _scorers(self, columns: Sequence[int] | None = None) -> Owners:
        """Return the ownership scores of the experts in these columns, all by default; looked up once."""
        key = None if columns is None else tuple(columns)
        if key not in self._owners:
            experts = self._in_columns(columns)
            self._owners[key] = Owners(experts, [expert.ownership(self.ownership, self.base) for expert in experts])
        return self._owners[key]

    def _in_columns(self, columns: Sequence[int] | None) -> list[Expert]:
        experts = list(self)
        return experts if columns is None else [experts[column] for column in columns]

    def _by_new_classes(self) -> dict[tuple[str, ...], list[int]]:
        """Return the columns of the experts by the new classes that they bring, since these have outputs alike."""
        columns: dict[tuple[str, ...], list[int]] = {}
        for index, expert in enumerate(self):
            columns.setdefault(expert.new_classes, []).append(index)
        return columns

    # --- changes

    def add(self, expert: Expert | str | Path, unverified: bool = False) -> str:
        """Add an expert, given as an object or as its folder, and return its name.

        Parameters
        ----------
        expert
            The expert, or its folder.
        unverified
            Accept an expert that carries no fingerprint of its base.

        Raises
        ------
        RedxError
            Where there is an expert of this name, or the expert was not trained on this base.
        """
        expert = expert if isinstance(expert, Expert) else Expert.load(expert)
        self._check_free(expert.name, self.names)
        self._check_fits(expert, unverified)
        self._set({**self._experts, expert.name: expert})
        return expert.name

    def remove(self, name: str) -> Expert:
        """Remove an expert and return it, so that it can be added again."""
        removed = self[name]
        if len(self) == 1:
            raise RedxError(f"{name!r} is the last expert; without any, ask the base itself with the rule 'base'.")
        self._set({other: expert for other, expert in self._experts.items() if other != name})
        return removed

    def replace(self, name: str, expert: Expert | str | Path, unverified: bool = False) -> Expert:
        """Replace an expert by another, whose name may differ, and return the old one."""
        old, expert = self[name], expert if isinstance(expert, Expert) else Expert.load(expert)
        self._check_free(expert.name, [other for other in self.names if other != name])
        self._check_fits(expert, unverified, leaving=name)
        kept = {other: one for other, one in self._experts.items() if other != name}
        self._set(kept | {expert.name: expert})
        return old

    def put(self, expert: Expert) -> None:
        """Set an expert that was checked before, such as the same expert with other metrics."""
        self._set({**self._experts, expert.name: expert})

    @contextmanager
    def changing(self) -> Iterator[ExpertLibrary]:
        """Undo at the end of the block whatever is added, removed or replaced inside it."""
        before = self._experts
        try:
            yield self
        finally:
            self._set(before)

    def subset(self, names: Sequence[str]) -> ExpertLibrary:
        """Return a library of these experts alone; nothing is copied."""
        return self._part({name: self[name] for name in sorted(names, key=natural_order)})

    def at(self, columns: Sequence[int]) -> ExpertLibrary:
        """Return a library of the experts in these columns, which ascend; nothing is copied."""
        experts = list(self)
        return self._part({self.names[column]: experts[column] for column in columns})

    def _part(self, experts: dict[str, Expert]) -> ExpertLibrary:
        """Return a library of some of the experts, given in natural order."""
        library = ExpertLibrary({}, self.base, self.banks, self.ownership, self._compute_fingerprint, self.classes)
        library.pool, library.weight = self.pool, self.weight
        library._experts = experts
        library._forget()
        library._new_classes, library._whole = self.new_classes, self  # columns and base are those of the whole
        library._stacks = self._stacks
        return library

    def _set(self, experts: dict[str, Expert]) -> None:
        self._experts = {name: experts[name] for name in sorted(experts, key=natural_order)}
        self._forget()

    def _forget(self) -> None:
        """Forget what was derived from the experts."""
        self.names = tuple(self._experts)
        self._new_classes: tuple[str, ...] | None = None
        self._head: RidgeHead | None = None
        self._whole: ExpertLibrary | None = None  # that this is a part of
        self._own: Tensor | None = None  # which classes are each expert's own
        self._found, self._owners = {}, {}  # networks and ownership scores that were looked up

    def _check_free(self, name: str, taken: Sequence[str]) -> None:
        """Refuse a name that another expert has, or that some disks take for another's."""
        if name in taken:
            raise RedxError(f"There is an expert {name!r} already; replace it, or remove it first.")
        if same := [other for other in taken if other.casefold() == name.casefold()]:
            raise RedxError(f"There is an expert {same[0]!r}, which some disks take for {name!r}; rename one.")

    def _check_fits(self, expert: Expert, unverified: bool, leaving: str = "") -> None:
        """Refuse an expert that was trained on another base or lacks a part of some bank."""
        theirs, ours = expert.info.get("base"), self.fingerprint
        if not theirs and ours and not unverified:
            raise RedxError(
                f"Expert {expert.name!r} does not say which base it was trained on; train it with "
                "`redx experts train`, or accept it with --unverified where you know its base."
            )
        if theirs and (differences := base_differences(theirs, ours)):
            raise RedxError(
                f"Expert {expert.name!r} was trained on another base: {', '.join(differences)} differ; "
                "train it on this run's base with `redx experts train`."
            )
        others = [label for other in self if other.name not in (expert.name, leaving) for label in other.new_classes]
        check_new_classes(expert.name, expert.new_classes, self.classes, others)
        for bank_id, config in self.banks.items():
            expert.bank(bank_id, config, self.base)
            if config.controlled:
                expert.ownership(self.ownership, self.base)
        if self.pool is not None and (statistics := expert.statistics()) is not None:
            self.pool.check(expert.name, statistics, (*self.classes, *expert.new_classes))

    def stacked_bank(self, bank_id: BankId) -> Bank:
        """Return the experts of a bank as one stack, to train or to average them."""
        config = self.banks[bank_id]
        return load_bank(config, [expert.tensors(str(config.experts_of or bank_id)) for expert in self], self.base)

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        """Move or convert the networks of all experts, as `nn.Module.to` and `nn.Module.double` do."""
        for expert in self:
            for bank_id, config in self.banks.items():
                expert.bank(bank_id, config, self.base)._apply(change)
            if expert.has_ownership:
                scorer = expert.ownership(self.ownership, self.base)
                scorer.scorer._apply(change)
                if scorer.base is not self.base:
                    scorer.base._apply(change)
        self._forget()


def _marks(experts: Iterable[Expert]) -> dict[str, str]:
    """Return the hash of the statistics of every expert that brings some."""
    return {expert.name: mark for expert in experts if (mark := expert.statistics_mark)}


def build_library(
    experts: dict[str, Expert],
    base: Base,
    config: ModelConfig,
    fingerprint: Callable[[], dict[str, Any]],
    classes: Sequence[str],
    head: RidgeHead | None = None,
) -> ExpertLibrary:
    """Return the library of a model with these settings.

    Parameters
    ----------
    experts, base, fingerprint, classes
        As for `ExpertLibrary`.
    config
        Settings of the model.
    head
        The base from statistics that was solved before, where there is one.
    """
    pool = None
    if config.statistics.use and classes:
        map = FeatureMap.create(config.statistics, base)
        pool = StatisticsPool(map, base=lambda: str(fingerprint().get("base weights", "")), head=head)
    banks = config.of_form("standalone", "residual")
    weight = config.statistics.weight
    return ExpertLibrary(experts, base, banks, config.ownership, fingerprint, classes, pool, weight)


def order_domains(experts: Sequence[str], domains: Sequence[str]) -> tuple[str, ...]:
    """Return the one order of domains: the experts in natural order, then domains of the data without an expert.

    `Parts.domains` counts in this order, so index k is the domain of expert k.
    """
    names = sorted(experts, key=natural_order)
    return (*names, *(name for name in domains if name not in names))
