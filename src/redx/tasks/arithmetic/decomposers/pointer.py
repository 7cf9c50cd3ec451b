"""The pointer decomposer: a small network that reads words and copies operands by pointing at them.

The chain starts at a learned node, points at the first operand, and each operand points at the next one until the stop;
whether an operand is added or subtracted is classified at the operand itself. Every number is used at most once, and
the stop is closed until one step is made, so a well-formed program comes out for any finite weights.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from redx.config import TrainingConfig
from redx.errors import RedxError
from redx.seeding import generator
from redx.tasks.arithmetic.decomposers.pointer_network import KNOWN, NUMBER, PAD, UNKNOWN, PointerNetwork, Texts
from redx.tasks.arithmetic.program import Program, Step
from redx.tasks.arithmetic.sentences import Language, language, sample, write
from redx.tasks.arithmetic.tokens import Token, tokens
from redx.training.loop import train

COMMON = 5  # a word is known when training says it so often; all others are alike
SAMPLES = 32_000
DIET = ("plain", "paraphrase", "paraphrase", "story", "story", *["distractor"] * 4)  # the harder, the more
EPOCHS = 3
BATCH = 32
TRAINING = TrainingConfig(
    epochs=1, batch=1, virtual_batch=1, lr=3e-3, weight_decay=0.01, warmup=0.05, schedule="cosine", clip=1.0
)
MIXED = 0.5  # share of sentences that are mixed from several templates
UNHEARD = 0.1  # share of words that training makes unknown
CELLS = 2**18  # words, or pairs of numbers, that are decoded at once

_OPERATORS = "+-"

# the words by number, which of them are said once (0), again (1), or again where the text asks (2), and its numbers
Read = tuple[list[int], list[int], list[int]]
Example = tuple[list[Token], list[int], list[int]]  # a text, the chain of its numbers, the operators of its steps


class TrainingBatch(NamedTuple):
    """A batch for training: texts of B sentences with M numbers each, and the S links of their chains."""

    texts: Texts
    rows: Tensor  # (S,) where each link starts, of B (1+M) places
    nexts: Tensor  # (S,) the number it points at, or the stop
    used: Tensor  # (S, M+1) numbers that are behind it
    steps: Tensor  # (S - 2 B,) where each operator is, of B M places
    signs: Tensor  # (S - 2 B,) the operators


class PointerDecomposer:
    """A trained decomposer: texts to programs.

    Parameters
    ----------
    network
        The trained network.
    vocabulary
        Hashes of the words that it knows, in the order of their embeddings.
    """

    def __init__(self, network: PointerNetwork, vocabulary: Tensor) -> None:
        self.network, self.vocabulary = network, vocabulary
        self._known = {word: index for index, word in enumerate(vocabulary.tolist(), KNOWN)}

    @classmethod
    def train(cls, seed: int, samples: int = SAMPLES, words: Language | None = None) -> PointerDecomposer:
        """Train on sentences of one to four steps, made from the training templates."""
        words = words or language("train")
        draw = random.Random(f"{seed}/pointer/sentences")
        examples = [_example(draw, words) for _ in range(samples)]
        counts = Counter(_hash(token) for text, _, _ in examples for token in text if token.value is None)
        vocabulary = torch.tensor(sorted(word for word, count in counts.items() if count >= COMMON))
        network = PointerNetwork(len(vocabulary))
        network.initialise(generator(seed, "pointer", "start"))
        pointer = cls(network, vocabulary)
        read = [(pointer._read(text), chain, signs) for text, chain, signs in examples]
        batches = [batch for _ in range(EPOCHS) for batch in _batches_of(read, draw)]
        noise = generator(seed, "pointer", "unheard")
        train(
            network.ordered_parameters(),
            lambda rows: pointer._loss(batches[int(rows)], noise),
            [len(batches)],
            [generator(seed, "pointer", "batches")],
            TRAINING,
            title="pointer",
        )
        return cls(network.requires_grad_(False), vocabulary)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that it has learned, to be saved."""
        return {"vocabulary": self.vocabulary, **self.network.state_dict()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PointerDecomposer:
        """Return the decomposer that `tensors` described."""
        vocabulary = tensors.get("vocabulary", torch.empty(0))
        network = PointerNetwork(len(vocabulary))
        weights = {name: tensor for name, tensor in tensors.items() if name != "vocabulary"}
        shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        if vocabulary.dtype != torch.long or {name: tensor.shape for name, tensor in weights.items()} != shapes:
            raise RedxError("These tensors are no pointer decomposer of this version; train it again with `redx run`.")
        network.load_state_dict(weights)
        return cls(network.requires_grad_(False), vocabulary)

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]:
        """Return a program for every text, or the error of a text that cannot be read."""
        programs: list[Program | RedxError] = []
        read: list[tuple[int, list[Token]]] = []
        for index, text in enumerate(texts):
            try:
                read.append((index, tokens(text)))
                programs.append(_UNREAD)
            except RedxError as error:
                programs.append(error)
        read.sort(key=lambda pair: len(pair[1]))  # texts of similar length go together
        for batch in _decoding_batches(read):
            values = [[token.value for token in text if token.value is not None] for _, text in batch]
            chains = self._decode([self._read(text) for _, text in batch])
            for (index, _), numbers, (first, *steps) in zip(batch, values, chains, strict=True):
                chain = tuple(Step(_OPERATORS[operator], numbers[at]) for at, operator in steps)
                programs[index] = Program(numbers[first[0]], chain)
        return programs

    def _read(self, text: Sequence[Token]) -> Read:
        hashes = [NUMBER if token.value is not None else _hash(token) for token in text]
        words = [NUMBER if word == NUMBER else self._known.get(word, UNKNOWN) for word in hashes]
        count = Counter(hashes)
        asked = _asked_words(hashes, text)
        again = [0 if word == NUMBER or count[word] < 2 else 1 + (word in asked) for word in hashes]
        return words, again, [index for index, word in enumerate(words) if word == NUMBER]

    def _loss(self, batch: TrainingBatch, noise: Generator) -> Tensor:
        """Return the cross-entropy of the true chains, (1,); every step is given the true steps before it."""
        ids, again, spots, real = batch.texts
        unheard = torch.rand(ids.shape, generator=noise) < UNHEARD
        ids = ids.masked_fill(unheard & (ids >= KNOWN), UNKNOWN)
        follows, operators = self.network((ids, again, spots, real), noise)
        chosen = follows.flatten(0, 1)[batch.rows].masked_fill(batch.used, -torch.inf)
        signs = operators.flatten(0, 1)[batch.steps]
        loss = F.cross_entropy(chosen, batch.nexts) + F.cross_entropy(signs, batch.signs)
        return loss.unsqueeze(0)

    @torch.no_grad()
    def _decode(self, batch: list[Read]) -> list[list[tuple[int, int]]]:
        """Return for every text the numbers in the order of the program, each with its operator."""
        follows, operators = self.network(_stack(batch))
        signs = operators.argmax(2).tolist()
        count, stop = len(batch), follows.shape[2] - 1
        lanes = torch.arange(count)
        here = torch.zeros(count, dtype=torch.long)  # row: the start
        used = torch.zeros(count, stop + 1, dtype=torch.bool)
        path = []
        for turn in range(stop):
            score = follows[lanes, here].masked_fill(used, -torch.inf)
            if turn < 2:  # at least a first operand and one step
                score[:, stop] = -torch.inf
            there = score.argmax(1)
            path.append(there)
            if bool((there == stop).all()):
                break
            used[lanes, there] |= there != stop
            used[:, :stop] |= (there == stop).unsqueeze(1)  # a chain that has stopped stays so
            here = torch.where(there == stop, here, there + 1)
        chains = torch.stack(path, 1).tolist()  # (B, turns)
        return [
            [(number, signs[lane][number]) for number in chain if number != stop] for lane, chain in enumerate(chains)
        ]


def _example(draw: random.Random, words: Language) -> Example:
    program = sample(draw, draw.choice((1, 2, 2, 3, 3, 4, 4)))
    text, order = write(program, draw, words, draw.choice(DIET), mixed=draw.random() < MIXED)
    chain = [order.index(place) for place in range(len(program.operands))]
    return tokens(text), chain, [_OPERATORS.index(operator) for operator, _ in program.steps]


def _batches_of(lessons: list[tuple[Read, list[int], list[int]]], draw: random.Random) -> list[TrainingBatch]:
    """All lessons once, like lengths together, so that little of a batch is padding."""
    order = sorted(lessons, key=lambda lesson: (len(lesson[0][0]), draw.random()))
    return [_batch(order[start : start + BATCH]) for start in range(0, len(order), BATCH)]


def _batch(lessons: list[tuple[Read, list[int], list[int]]]) -> TrainingBatch:
    texts = _stack([read for read, _, _ in lessons])
    most = texts[2].shape[1]
    rows: list[int] = []
    nexts: list[int] = []
    used: list[list[bool]] = []
    steps: list[int] = []
    for lesson, (_, chain, _) in enumerate(lessons):
        behind = [False] * (most + 1)
        for here, there in zip([-1, *chain], [*chain, most], strict=True):
            if here >= 0:
                behind[here] = True
            rows.append(lesson * (most + 1) + here + 1)
            nexts.append(there)
            used.append(behind.copy())
        steps += [lesson * most + here for here in chain[1:]]
    signs = torch.tensor([sign for _, _, each in lessons for sign in each])
    return TrainingBatch(texts, torch.tensor(rows), torch.tensor(nexts), torch.tensor(used), torch.tensor(steps), signs)


def _hash(token: Token) -> int:
    return crc32(token.text.encode())


def _asked_words(hashes: list[int], found: Sequence[Token]) -> set[int]:
    """The words of all sentences that ask or hold no number: what operands count is among them, distractors seldom."""
    asked: set[int] = set()
    start = 0
    for place, token in enumerate(found, 1):
        if token.text in ".?!;:" or place == len(found):
            if token.text == "?" or NUMBER not in hashes[start:place]:
                asked.update(hashes[start:place])
            start = place
    return asked


def _stack(batch: Sequence[Read]) -> Texts:
    """Words (B, T), which are said again (B, T), places of the numbers (B, M), which of these are real (B, M)."""
    length = max(len(ids) for ids, _, _ in batch)
    most = max(len(spots) for _, _, spots in batch)
    ids = torch.tensor([ids + [PAD] * (length - len(ids)) for ids, _, _ in batch])
    again = torch.tensor([again + [0] * (length - len(again)) for _, again, _ in batch])
    places = torch.tensor([spots + [0] * (most - len(spots)) for _, _, spots in batch])
    held = torch.tensor([[True] * len(spots) + [False] * (most - len(spots)) for _, _, spots in batch])
    return ids, again, places, held


def _decoding_batches(read: list[tuple[int, list[Token]]]) -> Iterator[list[tuple[int, list[Token]]]]:
    """Cut texts, short ones first, so that no batch takes much memory."""
    start = 0
    while start < len(read):
        stop = start + 1
        while stop < len(read) and (stop - start) * _cells(read[stop][1]) < CELLS:
            stop += 1
        yield read[start:stop]
        start = stop


def _cells(found: list[Token]) -> int:
    return max(16 * len(found), len(found) ** 2 // 4)  # at most every other token is a number


_UNREAD = RedxError("This text was not read.")  # stands in for what is decoded later
