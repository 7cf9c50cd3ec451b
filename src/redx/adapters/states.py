"""States of windows: what base, adapters and merges give for held-out text, before the vocabulary-sized scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from redx.adapters.composed import ComposedLM
from redx.adapters.documents import Window

TOGETHER = 4  # windows that run through the model at once


@dataclass(frozen=True)
class States:
    """What the model gives for one window of T tokens.

    Attributes
    ----------
    middle
        The base's states after its middle block, (T, D).
    final
        The last states of every row, (R, T, D).
    last
        The logits of every row at the last position, (R, C).
    """

    middle: Tensor
    final: Tensor
    last: Tensor


def read_states(
    composed: ComposedLM, windows: Sequence[Window], rows: Sequence[str | None]
) -> Iterator[tuple[Window, States]]:
    """Yield every window with its states; neighbours of equal length run through the model together."""
    middle = composed.base.model.config.num_hidden_layers // 2
    for _, alike in itertools.groupby(windows, key=lambda window: len(window.tokens)):
        while group := list(itertools.islice(alike, TOGETHER)):
            tokens = torch.stack([window.tokens[:-1] for window in group])  # (G, T)
            output = composed.stack.forward(
                list(rows) * len(group),
                tokens.repeat_interleave(len(rows), 0),
                output_hidden_states=True,
                use_cache=False,
                logits_to_keep=1,
            )
            for place, window in enumerate(group):
                own = slice(place * len(rows), (place + 1) * len(rows))
                states = output.hidden_states
                yield window, States(states[middle][own][0].float(), states[-1][own], output.logits[own][:, -1])
