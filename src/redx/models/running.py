"""What the experts of a library compute together: outputs of a bank, ownership scores, and where they are active."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from redx.config import BankConfig, BankId, OwnershipConfig
from redx.models.base import Base
from redx.models.classes import place_columns
from redx.models.expert import Expert
from redx.models.stack import Members, Owners, Stacks

CLOSED_GATE = -1e9  # the gate of an expert that claims nothing: its softmax weight is exactly zero beside any other


class RunningExperts(Sized, Iterable[Expert]):
    """The part of `ExpertLibrary` that runs the experts; the library has these attributes."""

    base: Base
    banks: dict[BankId, BankConfig]
    ownership: OwnershipConfig
    new_classes: Any  # a property of the library
    extended_base: Any  # a property of the library
    _stacks: Stacks
    _found: dict[tuple[BankId, tuple[int, ...] | None], Members]
    _owners: dict[tuple[int, ...] | None, Owners]

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
            Residuals or logits of shape (N, K, C), C with the new classes; zero where an expert with a cut-off is
            inactive.
        """
        new_classes, known, config = self.new_classes, self.base.known, self.banks[bank_id]
        name = str(config.of or bank_id)
        if not new_classes and len(self):  # all experts have outputs alike
            outputs = self._stacks.run(name, self._members(bank_id), h)
        else:
            outputs = h.new_zeros(len(h), len(self), known + len(new_classes))
            for own, columns in self._by_new_classes().items():
                values = self._stacks.run(name, self._members(bank_id, columns), h)
                outputs[:, columns] = place_columns(values, known, own, new_classes, residual=bank_id.corrects_base)
        return outputs * self.active(h)[..., None] if config.owned else outputs

    def first_outputs(self, bank_id: BankId, h: Tensor, first: Tensor) -> Tensor:
        """Return the outputs of the experts that each example asks; each reads only the examples that ask it.

        Parameters
        ----------
        bank_id
            The bank to run.
        h
            Features of shape (N, E).
        first
            Columns of the experts, (N, T).

        Returns
        -------
        Tensor
            What `outputs` has in these columns, (N, T, C).
        """
        if not len(h):
            return h.new_zeros(*first.shape, self.extended_base.outputs)
        if self.new_classes:  # then experts have outputs of several widths
            return self.outputs(bank_id, h).gather(1, first[..., None].expand(-1, -1, self.extended_base.outputs))
        config = self.banks[bank_id]
        outputs = self._stacks.run(str(config.of or bank_id), self._members(bank_id), h, first)
        return outputs * self.active(h).gather(1, first)[..., None] if config.owned else outputs

    def claims(self, h: Tensor) -> Tensor:
        """Return every expert's ownership score, (N, E) to (N, K): the gates of the open-set router `keys`."""
        if not len(self):
            return h.new_zeros(len(h), 0)
        if self.new_classes:
            claims = h.new_zeros(len(h), len(self))
            for columns in self._by_new_classes().values():
                claims[:, columns] = self._stacks.claims(self._scorers(columns), h)
        else:
            claims = self._stacks.claims(self._scorers(), h)
        return claims.nan_to_num(posinf=-CLOSED_GATE, neginf=CLOSED_GATE)

    def own_classes(self) -> Tensor | None:
        """Return which classes, with the new ones, are each expert's own, (K, C); None where no score is by class."""
        own = torch.zeros(len(self), self.base.known + len(self.new_classes), dtype=torch.bool)
        for labels, columns in self._by_new_classes().items():
            for column, scorer in zip(columns, self._scorers(columns).scorers, strict=True):
                if scorer.classes is None:
                    return None
                own[column] = place_columns(scorer.classes[0], self.base.known, labels, self.new_classes, residual=True)
        return own

    def active(self, h: Tensor, alpha: float | None = None) -> Tensor:
        """Return where each expert's score exceeds its cut-off: (N, E) to (N, K)."""
        alpha = alpha or self.ownership.alpha
        active = torch.zeros(len(h), len(self), dtype=torch.bool, device=h.device)
        for columns in self._by_new_classes().values():
            owners = self._scorers(columns)
            cutoffs = torch.tensor([scorer.cutoff(alpha) for scorer in owners.scorers], device=h.device)
            active[:, columns] = self._stacks.scores(owners, h) > cutoffs
        return active

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
