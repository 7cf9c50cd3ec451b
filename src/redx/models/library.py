"""Experts by name, as they live in a model: each is read when first used, and none knows of the others.

They stand in one order, the natural order of their names, whatever order they came in: `base + Σ_k w_k residual_k` is
then the same sum, bit for bit. Adding, removing and replacing touch the one expert alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.config import BankConfig, OwnershipConfig
from redx.errors import RedxError
from redx.io import files
from redx.models.banks import Bank, build_bank, fill_bank, run_bank
from redx.models.base import Base
from redx.models.expert import Expert
from redx.models.fingerprint import base_differences

CLOSED_GATE = -1e9  # the gate of an expert that has no claim at all: its weight is exactly zero beside any other


class ExpertLibrary:
    """The experts of a model; change them with `add`, `remove` and `replace`, or for a while with `changing`."""

    def __init__(
        self,
        found: dict[str, Expert],
        base: Base,
        banks: dict[str, BankConfig],
        own: OwnershipConfig,
        mark: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._place(found)
        self.base, self.banks, self.ownership = base, banks, own
        self._mark, self._known = mark, None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._experts)

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
        """What the base computes, as every expert must know it; worked out once."""
        if self._known is None:
            self._known = self._mark()
        return self._known

    # --- changes

    def add(self, expert: Expert | str | Path) -> str:
        """Take an expert in; refused where it was trained on another base. Gives its name."""
        expert = expert if isinstance(expert, Expert) else Expert.read(expert)
        if expert.name in self._experts:
            raise RedxError(f"There is an expert {expert.name!r} already; replace it, or remove it first.")
        self._admit(expert)
        self._place({**self._experts, expert.name: expert})
        return expert.name

    def remove(self, name: str) -> Expert:
        """Take an expert out; gives it, so that it can be added again."""
        gone = self[name]
        if len(self) == 1:
            raise RedxError(f"{name!r} is the last expert; without any, ask the base itself with the rule 'base'.")
        self._place({other: expert for other, expert in self._experts.items() if other != name})
        return gone

    def replace(self, name: str, expert: Expert | str | Path) -> Expert:
        """Put an expert in the place of another; gives the old one."""
        old, expert = self[name], expert if isinstance(expert, Expert) else Expert.read(expert)
        if expert.name != name and expert.name in self._experts:
            raise RedxError(f"There is an expert {expert.name!r} already; remove it first.")
        self._admit(expert)
        self._place({other: one for other, one in self._experts.items() if other != name} | {expert.name: expert})
        return old

    @contextmanager
    def changing(self) -> Iterator[ExpertLibrary]:
        """For a while: whatever is added, removed or replaced inside is as before afterwards."""
        before = self._experts
        try:
            yield self
        finally:
            self._experts = before

    def only(self, names: Sequence[str]) -> ExpertLibrary:
        """The same experts, only these; nothing is copied."""
        return ExpertLibrary({name: self[name] for name in names}, self.base, self.banks, self.ownership, self._mark)

    def _place(self, found: dict[str, Expert]) -> None:
        self._experts = {name: found[name] for name in sorted(found, key=files.natural_order)}

    def _admit(self, expert: Expert) -> None:
        """Refuse an expert that does not belong to this base."""
        theirs, ours = expert.facts.get("base"), self.fingerprint
        if theirs is not None and (differ := base_differences(theirs, ours)):
            raise RedxError(
                f"Expert {expert.name!r} was trained on another base: {', '.join(differ)} differ; "
                "train it on this run's base with `redx experts train`."
            )
        for key, settings in self.banks.items():
            expert.voice(key, settings, self.base)
            if settings.owned:
                expert.owner(self.ownership, self.base)

    # --- what they say

    def speak(self, key: str, h: Tensor, chosen: Tensor | None = None) -> Tensor:
        """What every expert says in a bank, (N, E) to (N, K, C); only where it is chosen, (N, K), if that is given."""
        said = h.new_zeros(len(h), len(self), self.base.outputs)
        settings = self.banks[key]
        for place, expert in enumerate(self):
            rows = slice(None) if chosen is None else chosen[:, place].nonzero()[:, 0]
            if chosen is not None and not len(h[rows]):
                continue
            voice = run_bank(expert.voice(key, settings, self.base), h[rows])[:, 0]
            if settings.owned:
                voice = voice * expert.owner(self.ownership, self.base).speaks(h[rows], self.ownership.alpha)[:, None]
            said[rows, place] = voice
        return said

    def scores(self, h: Tensor) -> Tensor:
        """Every expert's own claim to each example: the gates of the open-set router, (N, E) to (N, K)."""
        found = [expert.owner(self.ownership, self.base).claims(h) for expert in self]
        return (
            torch.stack(found, 1).nan_to_num(posinf=-CLOSED_GATE, neginf=CLOSED_GATE)
            if found
            else h.new_zeros(len(h), 0)
        )

    def speaks(self, h: Tensor, alpha: float | None = None) -> Tensor:
        """Where each expert may speak: (N, E) to (N, K)."""
        alpha = alpha or self.ownership.alpha
        return torch.stack([expert.owner(self.ownership, self.base).speaks(h, alpha) for expert in self], 1)

    def stack(self, key: str) -> Bank:
        """All experts of a bank as one stack, to train or average them."""
        settings = self.banks[key]
        bank = build_bank(settings, len(self), self.base)
        fill_bank(bank, [expert.tensors(settings.of or key) for expert in self])
        return bank


CUTOFF_MARGIN = 1e-4  # cut-offs lie this much above their score, so that rounding cannot carry an example across


def with_raised_cutoffs(expert: Expert) -> Expert:
    """The same expert with scores of held-out examples a trifle higher, and so its cut-off: it speaks no oftener."""
    tensors = expert.tensors()
    if "ownership.calibration" in tensors:
        scores = tensors["ownership.calibration"]
        tensors["ownership.calibration"] = torch.where(
            scores.isfinite(), scores + CUTOFF_MARGIN * (1 + scores.abs()), scores
        )
    return Expert(expert.facts, tensors)


def to_double(library: ExpertLibrary) -> None:
    """Let all experts speak in double precision."""
    for expert in library:
        for key, settings in library.banks.items():
            expert.voice(key, settings, library.base).double()
            if settings.owned:
                expert.owner(library.ownership, library.base).scorer.double()
