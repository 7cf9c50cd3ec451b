"""The network of the pointer decomposer.

x = E[words] + A[repeated, asked]   every number is the same word, so the network cannot read its value
x ← x + σ(conv(norm(x)))            over words, then over numbers; only neighbours count, so any length works
P(j follows i) ∝ exp(q_i · (k_j + r_{j-i}))    over the numbers not yet used, and the stop
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

SIZE = 64  # features of a word or number
DILATIONS = (1, 2)  # of the convolutions over words, which reach six words to either side
NUMBER_LAYERS = 2  # convolutions over numbers, which reach two numbers to either side
REACH = 4  # all distances between numbers above this one are treated alike
DROPOUT = 0.2  # share of features that training drops
PAD, NUMBER, UNKNOWN, KNOWN = range(4)  # indices of words; known words are numbered from KNOWN on

# words by index, (B, T); which are repeated (1), or repeated where the text asks (2), (B, T); positions of the numbers,
# (B, M); which of these are no padding, (B, M)
Texts = tuple[Tensor, Tensor, Tensor, Tensor]


class _Convolution(nn.Module):
    """One convolution over words or numbers, with a layer norm before it."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(SIZE))
        self.weight = nn.Parameter(torch.zeros(SIZE * kernel, SIZE))
        self.bias = nn.Parameter(torch.zeros(SIZE))

    def forward(
        self, x: Tensor, mask: Tensor, dilation: int, noise: Generator | None, positions: Tensor | None = None
    ) -> Tensor:
        """Return new features of words or numbers, (B, T, D), or only of those at `positions`, (B, M): (B, M, D)."""
        count, length, _ = x.shape
        x = F.layer_norm(x, (SIZE,), self.scale) * mask  # padding stays zero
        width = len(self.weight) // SIZE
        x = F.pad(x, (0, 0, dilation * (width // 2), dilation * (width // 2)))
        if positions is None:
            x = torch.cat([x[:, dilation * shift :][:, :length] for shift in range(width)], 2)  # (B, T, W D)
        else:
            around = (positions.unsqueeze(2) + dilation * torch.arange(width)).flatten(1)  # (B, M W)
            x = x.gather(1, around.unsqueeze(2).expand(-1, -1, SIZE)).view(count, -1, width * SIZE)  # (B, M, W D)
        y = F.gelu(F.linear(x, self.weight.T, self.bias))
        if noise is None:
            return y
        kept = (torch.rand((count, 1, SIZE), generator=noise) >= DROPOUT).float()  # one mask per text, which is cheap
        return y * kept.div_(1 - DROPOUT)


class PointerNetwork(nn.Module):
    """Takes texts to scores of which number follows which, and of the operator of every number.

    Parameters
    ----------
    vocabulary
        Number of words that it knows.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.zeros(KNOWN + vocabulary, SIZE))
        self.again = nn.Parameter(torch.zeros(3, SIZE))
        self.near = nn.Parameter(torch.zeros(2 * REACH + 1, SIZE))
        self.word = nn.ModuleList(_Convolution(5) for _ in DILATIONS)
        self.number = nn.ModuleList(_Convolution(3) for _ in range(NUMBER_LAYERS))
        self.scale = nn.Parameter(torch.ones(SIZE))
        self.query = nn.Parameter(torch.zeros(SIZE, SIZE))
        self.key = nn.Parameter(torch.zeros(SIZE, SIZE))
        self.start = nn.Parameter(torch.zeros(SIZE))
        self.stop = nn.Parameter(torch.zeros(SIZE))
        self.operator = nn.Parameter(torch.zeros(SIZE, 2))

    def initialise(self, draw: Generator) -> None:
        """Draw the initial weights from one generator."""
        layers: list[nn.Module] = [*self.word, *self.number]
        scales: list[tuple[Any, float]] = [(self.words, 1.0)]
        scales += [(layer.weight, len(cast(Tensor, layer.weight)) ** -0.5) for layer in layers]
        scales += [(self.query, 0.25 * SIZE**-0.5), (self.key, 0.25 * SIZE**-0.5)]
        scales += [(self.start, 0.25), (self.stop, 0.25), (self.operator, SIZE**-0.5)]
        with torch.no_grad():
            for parameter, scale in scales:
                parameter.copy_(scale * torch.randn(*parameter.shape, generator=draw))

    def ordered_parameters(self) -> list[nn.Parameter]:
        """Return the parameters in a fixed order, on which the rounding of the gradient's norm depends."""
        outer = [self.scale, self.query, self.key, self.start, self.stop, self.operator]
        return [self.words, self.again, self.near, *self.word.parameters(), *self.number.parameters(), *outer]

    def forward(self, texts: Texts, noise: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return scores of texts with up to M numbers: follows (B, 1+M, M+1) and operators (B, M, 2).

        Row 0 of `follows` is the start, row 1+i is number i; column j is number j, the last column is the stop. With
        `noise`, features are dropped for training.
        """
        ids, again, positions, real = texts
        x = F.embedding(ids, self.words) + F.embedding(again, self.again)  # (B, T, D)
        mask = (ids != PAD).unsqueeze(2).float()
        *early, last = zip(self.word, DILATIONS, strict=True)
        for layer, dilation in early:
            x = x + layer(x, mask, dilation, noise)
        numbers = x.gather(1, positions.unsqueeze(2).expand(-1, -1, SIZE))  # (B, M, D)
        numbers = numbers + last[0](x, mask, last[1], noise, positions)
        mask = real.unsqueeze(2).float()
        for layer in self.number:
            numbers = numbers + layer(numbers, mask, 1, noise)
        numbers = F.layer_norm(numbers, (SIZE,), self.scale)
        count = len(ids)
        queries = torch.cat([self.start.expand(count, 1, -1), numbers @ self.query], 1)  # (B, 1+M, D)
        keys = torch.cat([numbers @ self.key, self.stop.expand(count, 1, -1)], 1)  # (B, M+1, D)
        follows = queries @ keys.transpose(1, 2)  # (B, 1+M, M+1)
        near = queries[:, 1:] @ self.near.T  # (B, M, 2 REACH + 1)
        order = torch.arange(positions.shape[1])
        distance = (order - order.unsqueeze(1)).clamp(-REACH, REACH) + REACH  # (M, M)
        near = near.gather(2, distance.expand(count, -1, -1))  # (B, M, M)
        follows = follows + F.pad(near, (0, 1, 1, 0))
        padding = F.pad(~real, (0, 1)).unsqueeze(1)  # numbers that are only padding
        return follows.masked_fill(padding, -torch.inf), numbers @ self.operator
