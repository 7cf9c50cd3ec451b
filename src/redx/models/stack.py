"""Stacked experts: all experts of one shape run as two batched products.

Experts of one shape lie in chunks of 64 slots or more: a new chunk has as many as all before it. A new expert is copied
into a free slot, so the others are not touched.
`V_k W_c` of a low-rank expert is multiplied once, when the expert gets its slot. Only the experts that are asked run.

Bits. The product of every expert is a matrix product of its own inside the batch, over the same sums in the same order
as that expert alone, so an output depends neither on the slot nor on the neighbours. Three exceptions were measured. On
some processors a product depends on where its operands begin in memory, so every slot begins at a multiple of 64 bytes,
as the tensors of an expert alone do. With several threads a batch of one matrix runs through another kernel where there
are few examples, so a lone expert then runs beside a copy of itself. A last layer with a single output runs through
another kernel as well, so it runs expert by expert, unless it is so small that torch multiplies it in a plain loop,
alone as in a batch. With one thread all outputs equal those of the loop over experts bit for bit; with several threads
those of a single example may differ by rounding. Where examples ask only some experts, an expert reads other numbers of
examples at a time, so outputs equal those of all experts to 1e-6.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from redx.config import BankId
from redx.models.banks import ROWS, Bank, LowRankBank, MLPBank
from redx.models.expert import Expert
from redx.models.ownership import OwnershipScorer, own_class_score
from redx.models.value_bank import ValueBank

SLOTS = 64  # experts of the first chunk
ALIGNMENT = 64  # bytes
LOOP = 400  # multiplications of a product below which torch runs it in a loop of its own, alone or in a batch
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
    """Experts of one shape, each in a slot of tensors that are allocated once."""

    def __init__(self, like: _Layers, slots: int = SLOTS) -> None:
        self.scale, self.activation, self.code = like.scale, like.activation, like.code
        self._flat = [_aligned(slots, weight[0].numel(), weight) for weight in like.weights]
        shapes = [weight.shape[1:] for weight in like.weights]
        self.weights = [_unflatten(flat, *shape) for flat, shape in zip(self._flat, shapes, strict=True)]
        self.biases = [None if bias is None else bias.new_empty(slots, *bias.shape[1:]) for bias in like.biases]
        self.free = list(range(slots - 1, -1, -1))
        self.slots, self.dtype, self.device = slots, self.weights[0].dtype, self.weights[0].device
        products = [*shapes, *([] if self.code is None else [self.code.classifier.shape])]
        self.width, self.outputs = max(max(shape) for shape in products), products[-1][1]

    def put(self, layers: _Layers) -> int:
        """Copy one expert into a free slot and return the slot."""
        slot = self.free.pop()
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
            weight = (
                weights[chosen]
                if isinstance(chosen, slice)
                else _unflatten(self._flat[layer][chosen], *weights.shape[1:])
            )
            bias = None if biases is None else biases[chosen]
            single = layer == last and weight.shape[2] == 1 and x.shape[1] * x.shape[2] >= LOOP
            x = (_expert_by_expert if single else _product)(bias, x, weight)
            x = self.activation(x.contiguous()) if layer < last else x  # gelu has other bits where it is not
        x = x if self.scale == 1 else self.scale * x
        x = x if self.code is None else self.code.code(x, read)
        return (x if len(x) == count else x[:count]).to(device)


def _aligned(slots: int, size: int, like: Tensor) -> Tensor:
    """Return memory for tensors of one size, each beginning at a multiple of 64 bytes: (slots, padded size)."""
    step = ALIGNMENT // like.element_size()
    return like.new_empty(slots, -(-size // step) * step)


def _unflatten(flat: Tensor, rows: int, columns: int) -> Tensor:
    """Return the tensors that lie in such memory: (slots, padded size) to (slots, rows, columns)."""
    return flat.as_strided((len(flat), rows, columns), (flat.shape[1], columns, 1))


def _product(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    rows, columns = x.shape[1], weight.shape[2]
    out = _unflatten(_aligned(len(weight), rows * columns, x), rows, columns)
    return torch.bmm(x, weight, out=out) if bias is None else torch.baddbmm(bias, x, weight, out=out)


def _expert_by_expert(bias: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    count = len(weight)
    biases = [None] * count if bias is None else bias.split(1)
    own = [part.clone() for part in x.split(1)]  # a copy begins at a multiple of 64 bytes
    return torch.cat([_product(*one) for one in zip(biases, own, weight.split(1), strict=True)])


Groups = dict[_Chunk, list[tuple[int, int]]]  # columns and slots by chunk


class Members:
    """Experts that run together, with their networks in one bank, and the slots that they were last found in.

    Parameters
    ----------
    experts
        The experts, in the order of their columns.
    banks
        The network of each of them.
    """

    def __init__(self, experts: Sequence[Expert], banks: Sequence[Bank]) -> None:
        self.experts, self.banks = experts, banks
        self._tensors = [_first_parameter(bank) for bank in banks]
        self._found: tuple[torch.dtype, list[torch.device], Groups] | None = None

    def groups(self, stack: Stack, dtype: torch.dtype) -> Groups:
        """Return columns and slots by chunk; they are looked up again where networks were moved or converted."""
        devices, found = [tensor.device for tensor in self._tensors], self._found
        if found is None or found[:2] != (dtype, devices):
            pairs = zip(self.experts, self.banks, strict=True)
            groups = _by_chunk([stack.slot(expert, bank, dtype) for expert, bank in pairs])
            found = self._found = dtype, devices, groups
        return found[2]


class Owners(Members):
    """Experts that run together, with their ownership scores; `classes` marks those of each expert, (K, C).

    Parameters
    ----------
    experts
        The experts, in the order of their columns.
    scorers
        The ownership score of each of them.
    """

    def __init__(self, experts: Sequence[Expert], scorers: Sequence[OwnershipScorer]) -> None:
        super().__init__(experts, [scorer.scorer for scorer in scorers])
        self.scorers, self.base = scorers, scorers[0].base
        own = [scorer.classes for scorer in scorers if scorer.classes is not None]
        self.classes = torch.cat(own) if own else None  # None where the scores do not depend on classes


class Stack:
    """The chunks of one bank, and the slot of every expert in them; a slot is free again when its expert is gone."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[Any, ...], list[_Chunk]] = {}
        self._slots: weakref.WeakKeyDictionary[Expert, tuple[_Chunk, int]] = weakref.WeakKeyDictionary()

    def slot(self, expert: Expert, bank: Bank, dtype: torch.dtype = torch.float32) -> tuple[_Chunk, int]:
        """Return the chunk and the slot of an expert, which is copied there on the first call in this precision."""
        known = self._slots.get(expert)
        if known is not None and known[0].dtype == dtype and known[0].device == _first_parameter(bank).device:
            return known
        layers = _Layers(bank)
        chunks = self._chunks.setdefault(layers.shape, [])
        chunk = next((chunk for chunk in chunks if chunk.free), None)
        if chunk is None:
            chunks.append(chunk := _Chunk(layers, max(SLOTS, sum(chunk.slots for chunk in chunks))))
        self._slots[expert] = chunk, slot = chunk, chunk.put(layers)
        weakref.finalize(expert, chunk.free.append, slot).atexit = False
        return chunk, slot

    def run(self, members: Members, h: Tensor) -> Tensor:
        """Return the outputs of experts for the same examples, (N, E) to (N, K, C)."""
        groups, count = members.groups(self, h.dtype), len(members.experts)
        chunk, placed = next(iter(groups.items()))
        if len(groups) == 1 and chunk.width * len(h) * count <= VALUES and _in_order(placed):  # all of them at once
            values = chunk.run([slot for _, slot in placed], h.expand(count, *h.shape))
            return values.transpose(0, 1).contiguous()
        outputs = h.new_empty(len(h), count, chunk.outputs)
        self._run_in_pieces(groups, h, outputs)
        return outputs

    def _run_in_pieces(self, groups: Groups, h: Tensor, outputs: Tensor) -> None:
        """Write the outputs of experts, so many experts and examples at a time that little memory is used."""
        for chunk, members in groups.items():
            for start in range(0, len(h), ROWS):
                rows = h[start : start + ROWS]
                count = max(1, VALUES // (chunk.width * max(1, len(rows))))  # experts that run at once
                for first in range(0, len(members), count):
                    some = members[first : first + count]
                    values = chunk.run([slot for _, slot in some], rows.expand(len(some), *rows.shape))
                    columns = _slice_or_list([column for column, _ in some])
                    outputs[start : start + ROWS, columns] = values.transpose(0, 1)

    def run_at(self, members: Members, h: Tensor, first: Tensor) -> Tensor:
        """Return the outputs of the experts that each example asks, (N, T) columns, to (N, T, C).

        Every expert reads only its own examples, filled up with its last one to the number of its neighbours.
        """
        asked = first.flatten()  # (N·T)
        order, counts = asked.argsort(stable=True), asked.bincount(minlength=len(members.experts))
        ends = counts.cumsum(0)
        outputs: Tensor | None = None
        for chunk, placed in members.groups(self, h.dtype).items():
            of_chunk = counts.tolist()
            for index in _runs_of_like_size([of_chunk[column] for column, _ in placed]):
                some = [placed[position] for position in index]
                columns = torch.tensor([column for column, _ in some])
                own, last = counts[columns, None], ends[columns, None]  # (k, 1)
                steps = torch.arange(max(of_chunk[column] for column, _ in some))
                pairs = order[torch.minimum(last - own + steps, last - 1)]  # (k, longest)
                values = chunk.run([slot for _, slot in some], h[pairs // first.shape[1]])  # (k, longest, C)
                if outputs is None:
                    outputs = values.new_empty(len(asked), values.shape[-1])
                is_real = steps < own
                outputs[pairs[is_real]] = values[is_real]
        assert outputs is not None
        return outputs.view(*first.shape, -1)


def _in_order(placed: Sequence[tuple[int, int]]) -> bool:
    """Return whether the columns of a chunk are 0, 1, 2, …"""
    return all(column == place for place, (column, _) in enumerate(placed))


def _first_parameter(bank: Bank) -> Tensor:
    """Return one parameter of a bank, which shows its device without a walk over all parameters."""
    if isinstance(bank, LowRankBank):
        return bank.down
    network = bank.network if isinstance(bank, ValueBank) else bank
    assert isinstance(network, MLPBank)
    return network.weights[0]


def _slice_or_list(columns: list[int]) -> slice | list[int]:
    """Return consecutive columns as a slice, which is written without an index."""
    first, count = columns[0], len(columns)
    return slice(first, first + count) if columns == list(range(first, first + count)) else columns


def _by_chunk(slots: Sequence[tuple[_Chunk, int]]) -> Groups:
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
        self._stacks: dict[BankId | str, Stack] = {}

    def run(self, name: BankId | str, members: Members, h: Tensor, first: Tensor | None = None) -> Tensor:
        """Return the outputs of a bank: of all experts, (N, E) to (N, K, C), or of those asked first, to (N, T, C)."""
        stack = self._stacks.setdefault(name, Stack())
        with torch.no_grad():
            return stack.run(members, h) if first is None else stack.run_at(members, h, first)

    def ownership_scores(self, owners: Owners, h: Tensor) -> Tensor:
        """Return every expert's ownership score, (N, E) to (N, K)."""
        outputs = self.run("ownership", owners, h)
        if owners.classes is None:
            return outputs[..., 0]
        return own_class_score(owners.base.classify(h)[:, None] + outputs, owners.classes)
