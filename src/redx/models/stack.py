"""Stacked experts: all experts of one shape run as two batched products.

Experts of one shape lie in chunks of 64 slots. A new expert is copied into a free slot, so the others are not touched.
`V_k W_c` of a low-rank expert is multiplied once, when the expert gets its slot. Only the experts that are asked run.

Bits. The product of every expert is a matrix product of its own inside the batch, over the same sums in the same order
as that expert alone, so an output depends neither on the slot nor on the neighbours. Two exceptions were measured. With
several threads a batch of one matrix runs through another kernel where there are few examples, so a lone expert then
runs beside a copy of itself. A last layer with a single output runs through another kernel as well, so it runs expert
by expert. With one thread all outputs equal those of the loop over experts bit for bit; with several threads those of a
single example may differ by rounding.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.composition.parts import predicted_classes
from redx.models.banks import ROWS, Bank, LowRankBank, MLPBank
from redx.models.expert import Expert
from redx.models.ownership import OwnershipScorer, mask_agreement, own_class_score
from redx.models.value_bank import ValueBank

SLOTS = 64  # experts of a chunk
FEW = 16  # examples below which a batch of one matrix may run through another kernel
VALUES = 2**22  # values of an intermediate result, (K, N, R) or (K, N, C), that are computed at once


class _Layers:
    """What a bank of one expert computes, as plain tensors: weights (1, inner, outer), biases (1, 1, outer) or None."""

    def __init__(self, bank: Bank) -> None:
        self.code: ValueBank | None = None
        if isinstance(bank, ValueBank):  # the layers give a value, which the base's code turns into logits
            assert isinstance(bank.network, MLPBank)
            self.code, bank = bank, bank.network
        with torch.no_grad():
            if isinstance(bank, LowRankBank):
                self.weights = [bank.down.detach(), bank.up @ bank.classifier]  # V_k W_c, folded
                self.biases: list[Tensor | None] = [None, None]
                if bank.new_weight is not None and bank.new_bias is not None:  # classes that the base does not know
                    known = bank.new_bias.new_zeros(1, 1, self.weights[1].shape[2])
                    self.weights[1] = torch.cat([self.weights[1], bank.new_weight], -1)
                    self.biases[1] = torch.cat([known, bank.new_bias], -1)
            else:
                self.weights = [weight.detach() for weight in bank.weights]
                self.biases = [bias.detach() for bias in bank.biases]
        self.scale, self.activation = bank.scale, bank.activation

    @property
    def shape(self) -> tuple[Any, ...]:
        """What two experts must share to lie in one chunk."""
        sizes = tuple(tuple(weight.shape[1:]) for weight in self.weights)
        kinds = self.weights[0].dtype, self.weights[0].device
        bare = [bias is None for bias in self.biases] == [True] * len(sizes)
        return sizes, bare, self.scale, self.activation, self.code and self.code.shift, *kinds


class _Chunk:
    """Up to 64 experts of one shape, each in a slot of tensors that are allocated once."""

    def __init__(self, like: _Layers) -> None:
        self.scale, self.activation, self.code, self.used = like.scale, like.activation, like.code, 0
        self.weights = [weight.new_zeros(SLOTS, *weight.shape[1:]) for weight in like.weights]
        self.biases = [None if bias is None else bias.new_zeros(SLOTS, *bias.shape[1:]) for bias in like.biases]
        self.free = list(range(SLOTS - 1, -1, -1))
        self.dtype, self.device = self.weights[0].dtype, self.weights[0].device
        products = [*self.weights, *([] if self.code is None else [self.code.classifier[None]])]
        self.width = max(max(weight.shape[1:]) for weight in products)

    def put(self, layers: _Layers) -> int:
        """Copy one expert into a free slot and return the slot."""
        slot = self.free.pop()
        self.used = max(self.used, slot + 1)
        for target, source in zip([*self.weights, *self.biases], [*layers.weights, *layers.biases], strict=True):
            if target is not None and source is not None:
                target[slot] = source[0]
        return slot

    def run(self, slots: Sequence[int], x: Tensor) -> Tensor:
        """Return the outputs of these slots, on the device of what each reads: (K, N, E) to (K, N, C)."""
        first, count, device = min(slots), len(slots), x.device
        x = x.to(self.device)
        if count == 1 and x.shape[1] < FEW:  # beside a copy of itself
            chosen: slice | Tensor = torch.tensor([first, first])
            x = x.expand(2, *x.shape[1:])
        elif list(slots) == list(range(first, first + count)):
            chosen = slice(first, first + count)
        else:
            chosen = torch.tensor(slots)
        last, read = len(self.weights) - 1, x
        for layer, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            weight, bias = weights[chosen], None if biases is None else biases[chosen]
            single = layer == last and weight.shape[2] == 1
            x = (_expert_by_expert if single else _product)(bias, x, weight)
            x = self.activation(x) if layer < last else x
        x = self.scale * x
        return (x if self.code is None else self.code.code(x, read))[:count].to(device)


def _product(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight if bias is None else torch.baddbmm(bias, x, weight)


def _expert_by_expert(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    count = len(weight)
    biases = [None] * count if bias is None else bias.split(1)
    return torch.cat([_product(*one) for one in zip(biases, x.split(1), weight.split(1), strict=True)])


class Stack:
    """The chunks of one bank, and the slot of every expert in them; a slot is free again when its expert is gone."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[Any, ...], list[_Chunk]] = {}
        self._slots: weakref.WeakKeyDictionary[Expert, tuple[_Chunk, int]] = weakref.WeakKeyDictionary()

    def slot(self, expert: Expert, bank: Bank, dtype: torch.dtype = torch.float32) -> tuple[_Chunk, int]:
        """Return the chunk and the slot of an expert, which is copied there on the first call in this precision."""
        known = self._slots.get(expert)
        if known is not None and known[0].dtype == dtype and known[0].device == _device(bank):
            return known
        layers = _Layers(bank)
        chunks = self._chunks.setdefault(layers.shape, [])
        chunk = next((chunk for chunk in chunks if chunk.free), None)
        if chunk is None:
            chunks.append(chunk := _Chunk(layers))
        self._slots[expert] = chunk, slot = chunk, chunk.put(layers)
        weakref.finalize(expert, chunk.free.append, slot).atexit = False
        return chunk, slot

    def run(self, slots: Sequence[tuple[_Chunk, int]], h: Tensor, outputs: Tensor) -> None:
        """Write the outputs of experts for the same examples, (N, E), to (N, K, C)."""
        for chunk, members in _by_chunk(slots).items():
            for start in range(0, len(h), ROWS):
                rows = h[start : start + ROWS]
                count = max(1, VALUES // (chunk.width * max(1, len(rows))))  # experts that run at once
                for first in range(0, len(members), count):
                    some = members[first : first + count]
                    values = chunk.run([slot for _, slot in some], rows.expand(len(some), *rows.shape))
                    columns = _slice_or_list([column for column, _ in some])
                    outputs[start : start + ROWS, columns] = values.transpose(0, 1)

    def run_chosen(self, slots: Sequence[tuple[_Chunk, int]], h: Tensor, where: Tensor, outputs: Tensor) -> None:
        """Write the outputs of experts where they are chosen, (N, K); every expert reads only its own examples."""
        for chunk, members in _by_chunk(slots).items():
            counts = where[:, [column for column, _ in members]].sum(0)
            for index in _runs_of_like_size(counts.tolist()):
                some = [members[position] for position in index]
                columns = torch.tensor([column for column, _ in some])
                longest = int(counts[index].max())
                # the rows of each expert, filled up with rows that it does not need
                chosen = where[:, columns].T  # (k, N)
                rows = chosen.int().sort(stable=True, dim=-1, descending=True).indices[:, :longest]
                is_real = chosen.gather(1, rows)
                values = chunk.run([slot for _, slot in some], h[rows])  # (k, longest, C)
                outputs[rows[is_real], columns[:, None].expand_as(rows)[is_real]] = values[is_real]


def _device(bank: Bank) -> torch.device:
    """Return where a bank lies; its own tensors tell it without a walk over all parameters."""
    return bank.classifier.device if isinstance(bank, LowRankBank | ValueBank) else bank.weights[0].device


def _slice_or_list(columns: list[int]) -> slice | list[int]:
    """Return consecutive columns as a slice, which is written without an index."""
    first, count = columns[0], len(columns)
    return slice(first, first + count) if columns == list(range(first, first + count)) else columns


def _by_chunk(slots: Sequence[tuple[_Chunk, int]]) -> dict[_Chunk, list[tuple[int, int]]]:
    """Return columns and slots by chunk, in the order of the slots."""
    members: dict[_Chunk, list[tuple[int, int]]] = {}
    for column, (chunk, slot) in enumerate(slots):
        members.setdefault(chunk, []).append((column, slot))
    return {chunk: sorted(pairs, key=lambda pair: pair[1]) for chunk, pairs in members.items()}


def _runs_of_like_size(counts: Sequence[int]) -> list[list[int]]:
    """Return the positions of counts above zero, grouped by powers of two, so that little is filled up."""
    groups: dict[int, list[int]] = {}
    for position, count in enumerate(counts):
        if count:
            groups.setdefault(math.ceil(math.log2(count)), []).append(position)
    return list(groups.values())


class Stacks:
    """The stacked experts of a library, by bank, and their stacked ownership scores."""

    def __init__(self) -> None:
        self._stacks: dict[str, Stack] = {}

    def fill(
        self,
        outputs: Tensor,
        name: str,
        experts: Sequence[Expert],
        banks: Sequence[Bank],
        h: Tensor,
        where: Tensor | None,
    ) -> None:
        """Write the outputs of every expert's bank, (N, E) to (N, K, C): all of them, or only where they are chosen."""
        stack = self._stacks.setdefault(name, Stack())
        with torch.no_grad():
            slots = [stack.slot(expert, bank, h.dtype) for expert, bank in zip(experts, banks, strict=True)]
            if where is None:
                stack.run(slots, h, outputs)
            else:
                stack.run_chosen(slots, h, where, outputs)

    def claims(
        self, experts: Sequence[Expert], scorers: Sequence[OwnershipScorer], h: Tensor, where: Tensor | None = None
    ) -> Tensor:
        """Return every expert's ownership score, (N, E) to (N, K); with `where`, any number where it is not chosen."""
        base, own = scorers[0].base, _own_classes(scorers)
        outputs = h.new_zeros(len(h), len(experts), 1 if own is None else base.outputs)
        self.fill(outputs, "ownership", experts, [scorer.scorer for scorer in scorers], h, where)
        return outputs[..., 0] if own is None else own_class_score(base.classify(h)[:, None] + outputs, own)

    def scores(
        self, experts: Sequence[Expert], scorers: Sequence[OwnershipScorer], h: Tensor, where: Tensor | None = None
    ) -> Tensor:
        """Return what is compared with the cut-offs, (N, E) to (N, K), as `OwnershipScorer.scores` does."""
        claims, own = self.claims(experts, scorers, h, where), _own_classes(scorers)
        if own is None or not scorers[0].contradict:
            return claims
        return mask_agreement(claims, predicted_classes(scorers[0].base.classify(h)), own)


def _own_classes(scorers: Sequence[OwnershipScorer]) -> Tensor | None:
    """Return which classes are each expert's own, (K, C); None where the scores do not depend on classes."""
    own = [scorer.classes for scorer in scorers if scorer.classes is not None]
    return torch.cat(own) if own else None
